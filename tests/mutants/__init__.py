"""Small faults planted in the sources, to see whether tests find them: `python -m tests.mutants`."""
