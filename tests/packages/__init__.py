"""Packages tried where users have them: a container, a Debian system, an upgrade of a running cluster, a new machine.

Each module is a program with a make target of its own, and writes a page of results beside it. They need root, Debian
and some minutes; tests/unit/test_packages.py has what can be checked in seconds.
"""
