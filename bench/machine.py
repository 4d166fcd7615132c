"""Describe the machine of a benchmark: processor, system, and versions of the software."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pylogd


def machine(librdkafka: str) -> dict[str, object]:
    """Return facts about machine and software by name. `librdkafka` is the version that the client used."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory": f"{memory / (1 << 30):.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "librdkafka": librdkafka,
        "commit": commit.stdout.strip() or "unknown",
        "pylogd": pylogd.__version__,
    } | {name: _version(name) for name in ("twisted", "construct", "crc32c", "google-crc32c")}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
