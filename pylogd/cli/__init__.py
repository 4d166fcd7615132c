"""The `pylogd` command."""
