"""The laboratory: control groups and disks for an experiment, removed at its end, whatever happens.

    with laboratory(folder) as lab:
        disk = lab.disk("a", 2 << 30)
        group = lab.group("broker")
        group.limit_memory(300 << 20)
        group.count(disk.number)
        broker = BrokerProcess(disk.mount / "data", log, settings, prefix=group.prefix)
        ...
        lab.callback(broker.kill)

Everything has a name with the process id of its run and the time at which that process started. So what a killed run
left behind is told from what another run uses, and is removed when the next one starts.

Rules: what this machine does not allow raises `Unavailable` with the reason; the experiment is then skipped. Brokers
run inside groups, clients outside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.lab import cgroups, disks
from bench.lab.cgroups import ControlGroup
from bench.lab.disks import Disk

PREFIX: Final = "pylogd-lab-"
#: One place for all checkouts, so that what any killed run left is found; on a disk, which /tmp need not be.
IMAGES: Final = Path("/var/tmp")
#: The queue of a slow disk: how many requests it has in progress, and their size in bytes.
QUEUE: Final = (4, 32 << 10)
_NAME: Final = re.compile(rf"{PREFIX}(\d+)-(\d+)")
_START_TIME: Final = 19  # position of the start time behind the command in /proc/PID/stat


class Laboratory:
    """Makes groups and disks. `folder` is for everything that need not be on one of the disks."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        """stack: what is made is removed when it ends, last first."""
        self.folder = folder
        self._stack = stack

    def group(self, name: str) -> ControlGroup:
        """Return a new control group. Raises Unavailable."""
        group = cgroups.make_group(f"{self.folder.name}-{name}")
        self._stack.callback(group.remove)
        return group

    def disk(self, name: str, size: int) -> Disk:
        """Return a new disk of `size` bytes. Raises Unavailable."""
        disk = disks.make_disk(self.folder, name, size)
        self._stack.callback(disk.remove)
        return disk

    def callback(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function at the end, before what was made earlier is removed."""
        self._stack.callback(function, *arguments)


@contextmanager
def laboratory(images: Path = IMAGES) -> Iterator[Laboratory]:
    """Yield an empty laboratory, after removing what killed runs left. `images`: where images of disks are kept."""
    disks.check_tools()
    remove_leftovers(images)
    folder = images / f"{PREFIX}{os.getpid()}-{_started(os.getpid())}"
    with ExitStack() as stack:
        folder.mkdir()
        stack.callback(disks.remove_leftovers, folder)
        yield Laboratory(folder, stack)


def remove_leftovers(images: Path) -> None:
    """Remove the groups and disks of runs that have ended without doing so."""
    for name in cgroups.group_names(PREFIX):
        if not owner_runs(name):
            cgroups.group_class()(name).remove()
    for folder in images.glob(f"{PREFIX}*"):
        if not owner_runs(folder.name):
            disks.remove_leftovers(folder)


def owner_runs(name: str) -> bool:
    """Return whether the process that made something with this name still runs. Foreign names count as in use."""
    found = _NAME.match(name)
    return found is None or _started(int(found[1])) == int(found[2])


def _started(pid: int) -> int:
    """Return when a process was started, in ticks since the boot; 0 if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[_START_TIME])
