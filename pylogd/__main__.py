"""`python -m pylogd`: the `pylogd` command."""

from __future__ import annotations

from pylogd.cli.main import main

if __name__ == "__main__":
    main()
