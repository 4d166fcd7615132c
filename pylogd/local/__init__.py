"""Helpers that run real servers on this machine: for trying pylogd out and for its tests, not for production."""
