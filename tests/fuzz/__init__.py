"""Fuzzing: requests for a running broker (`requests`), and coverage-guided fuzzing of the wire code (`targets`)."""
