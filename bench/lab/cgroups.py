"""Control groups for brokers: limits on memory and on a disk's reads and writes, and the kernel's counters of both.

Version 1 (a hierarchy for each controller) and version 2 are handled alike. Groups are made at the top of each
hierarchy, and their names say which process made them, so that the groups of a killed run can be found and removed.

Rules: bytes read are those of the kernel's counters. Version 1 does not charge buffered writes to the group that wrote
them: they are counted and limited at the device (`disks.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
#: More than any disk has. A limit is always set, because the kernel counts by device only where there is one.
_UNLIMITED: Final = 1 << 40
_END_SECONDS: Final = 10.0
#: Version 2's names of the limits.
_LIMITS_V2: Final = {"read_bps": "rbps", "write_bps": "wbps", "read_iops": "riops", "write_iops": "wiops"}


class Unavailable(Exception):
    """Raised if this machine does not allow something; the text is the reason, for the page."""


class ControlGroup(ABC):
    """A group of processes with limits of its own. `name` is unique on the machine."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def folders(self) -> list[Path]:
        """The group's directory in each hierarchy."""

    @abstractmethod
    def limit_memory(self, size: int) -> None:
        """Limit what the processes and their page cache use together: bytes."""

    @abstractmethod
    def limit_disk(self, device: str, **limits: int) -> None:
        """Limit a block device, named by its numbers such as `7:0`.

        limits: any of read_bps, write_bps (bytes a second), read_iops and write_iops (requests a second).
        """

    @abstractmethod
    def count(self, device: str) -> None:
        """Have the kernel count the bytes that the group reads from this device."""

    @abstractmethod
    def read_bytes(self, device: str) -> int:
        """Return how many bytes the group has read from a device."""

    @abstractmethod
    def memory(self) -> int:
        """Return the bytes that the group uses, its page cache included."""

    @abstractmethod
    def page_cache(self) -> int:
        """Return the bytes of page cache that the group uses."""

    @abstractmethod
    def drop_page_cache(self) -> None:
        """Ask the kernel to reclaim all of the group's page cache that is clean."""

    @property
    def prefix(self) -> list[str]:
        """The start of a command that runs the rest of it inside the group, in the same process."""
        files = [str(folder / "cgroup.procs") for folder in self.folders]
        script = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@"'
        return ["sh", "-c", script, "sh", *files, "--"]

    def remove(self) -> None:
        """Kill the processes of the group and remove it."""
        deadline = time.monotonic() + _END_SECONDS
        for folder in self.folders:
            while folder.exists():
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                if time.monotonic() > deadline:
                    raise OSError(f"{folder} can't be removed: it still has processes")
                time.sleep(0.02)


class GroupV1(ControlGroup):
    """A group of version 1, in the hierarchies `memory` and `blkio`."""

    def __init__(self, name: str, root: Path = ROOT) -> None:
        super().__init__(name)
        self._memory, self._blkio = root / "memory" / name, root / "blkio" / name

    @property
    def folders(self) -> list[Path]:
        return [self._memory, self._blkio]

    def limit_memory(self, size: int) -> None:
        (self._memory / "memory.limit_in_bytes").write_text(str(size))

    def limit_disk(self, device: str, **limits: int) -> None:
        for name, value in limits.items():
            (self._blkio / f"blkio.throttle.{name}_device").write_text(f"{device} {value}")

    def count(self, device: str) -> None:
        self.limit_disk(device, read_bps=_UNLIMITED)

    def read_bytes(self, device: str) -> int:
        return service_bytes((self._blkio / "blkio.throttle.io_service_bytes").read_text(), device, "Read")

    def memory(self) -> int:
        return int((self._memory / "memory.usage_in_bytes").read_text())

    def page_cache(self) -> int:
        return flat_keyed((self._memory / "memory.stat").read_text())["cache"]

    def drop_page_cache(self) -> None:
        os.sync()
        # The kernel gives up with EBUSY where something stays in use; what could be reclaimed is then gone.
        with contextlib.suppress(OSError):
            (self._memory / "memory.force_empty").write_text("0")


class GroupV2(ControlGroup):
    """A group of version 2."""

    def __init__(self, name: str, root: Path = ROOT) -> None:
        super().__init__(name)
        self._folder = root / name

    @property
    def folders(self) -> list[Path]:
        return [self._folder]

    def limit_memory(self, size: int) -> None:
        (self._folder / "memory.max").write_text(str(size))

    def limit_disk(self, device: str, **limits: int) -> None:
        words = " ".join(f"{_LIMITS_V2[name]}={value}" for name, value in limits.items())
        (self._folder / "io.max").write_text(f"{device} {words}")

    def count(self, device: str) -> None:
        """Do nothing: version 2 counts every device."""

    def read_bytes(self, device: str) -> int:
        return nested_keyed((self._folder / "io.stat").read_text()).get(device, {}).get("rbytes", 0)

    def memory(self) -> int:
        return int((self._folder / "memory.current").read_text())

    def page_cache(self) -> int:
        return flat_keyed((self._folder / "memory.stat").read_text())["file"]

    def drop_page_cache(self) -> None:
        os.sync()
        # EAGAIN says that less than this could be reclaimed.
        with contextlib.suppress(OSError):
            (self._folder / "memory.reclaim").write_text(str(self.page_cache()))


def group_class(root: Path = ROOT) -> type[GroupV1 | GroupV2]:
    """Return the class for this machine's version of control groups. Raises Unavailable."""
    if (root / "memory").is_dir() and (root / "blkio").is_dir():
        return GroupV1
    controllers = root / "cgroup.controllers"
    if controllers.exists():
        missing = {"memory", "io"} - set(controllers.read_text().split())
        if not missing:
            return GroupV2
        raise Unavailable(f"control groups (version 2) lack the controller {' and '.join(sorted(missing))}")
    raise Unavailable(f"{root} has neither the controllers memory and blkio (version 1) nor version 2")


def make_group(name: str, root: Path = ROOT) -> ControlGroup:
    """Make a group. Raises Unavailable if this process may not."""
    group = group_class(root)(name, root)
    try:
        if isinstance(group, GroupV2):
            (root / "cgroup.subtree_control").write_text("+memory +io")
        for folder in group.folders:
            folder.mkdir()
    except OSError as error:
        raise Unavailable(f"control groups can't be made here: {error}") from None
    return group


def group_names(prefix: str, root: Path = ROOT) -> Iterator[str]:
    """Yield the names of the groups that begin with `prefix`, whoever made them."""
    folders = [path for place in (root, root / "memory", root / "blkio") for path in place.glob(f"{prefix}*")]
    yield from sorted({path.name for path in folders if path.is_dir()})


def service_bytes(text: str, device: str, operation: str) -> int:
    """Return a device's bytes from the text of `blkio.throttle.io_service_bytes`: lines `7:0 Read 4096`."""
    for line in text.splitlines():
        words = line.split()
        if words[:2] == [device, operation]:
            return int(words[2])
    return 0


def flat_keyed(text: str) -> dict[str, int]:
    """Parse lines `name number`, the form of `memory.stat`."""
    return {name: int(value) for name, _, value in (line.partition(" ") for line in text.splitlines())}


def nested_keyed(text: str) -> Mapping[str, Mapping[str, int]]:
    """Parse lines `8:0 rbytes=1 wbytes=2`, the form of `io.stat`."""
    found = {}
    for line in text.splitlines():
        key, *pairs = line.split()
        found[key] = {name: int(value) for name, _, value in (pair.partition("=") for pair in pairs)}
    return found
