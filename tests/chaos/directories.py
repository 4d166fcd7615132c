"""Log directories that are away for a while, or whose machine seems to have been restarted."""

from __future__ import annotations

import re
from pathlib import Path


def away(path: Path) -> Path:
    """Return the name of a directory while it is away."""
    return path.with_name(f"{path.name}.away")


def boot_anew(folder: Path) -> None:
    """Make a log directory look as if the machine had been restarted since its last use.

    Brokers detect a restart by a boot id on the disk that differs from the kernel's: this changes the one on the disk.
    """
    path = folder / "meta.properties"
    if path.exists():
        path.write_text(re.sub(r"(?m)^boot\.id=.*$", "boot.id=another", path.read_text()))
