"""The jars of Apache ZooKeeper's server."""

from __future__ import annotations

from pathlib import Path


def jars() -> list[str]:
    """Return the paths of the jars that a standalone server needs, as its class path."""
    return sorted(str(path) for path in (Path(__file__).parent / "jars").glob("*.jar"))
