"""Disks for brokers: ext4 images behind loop devices, which can be limited, measured, frozen and removed.

The loop device uses direct I/O (`losetup --direct-io=on`): otherwise the image would have a page cache of its own below
the file system's, charged to nobody, and a read that missed the first would hit the second.

Dirty pages: the kernel bounds them by shares of the whole machine's memory, so that a broker in a group of 300 MB could
fill it with dirty pages before any is written. `limit_dirty` gives the device bounds that fit the group.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.lab.cgroups import Unavailable

_TOOLS: Final = {"losetup": "util-linux", "mkfs.ext4": "e2fsprogs", "mount": "mount", "umount": "mount"}
_TOOL_SECONDS: Final = 120.0
#: The kind of the file systems that have images, not files of a broker (`even_disk`).
_BELOW: Final = "fuse"
_FREEZE: Final = 0xC0045877  # FIFREEZE, linux/fs.h
_THAW: Final = 0xC0045878  # FITHAW
#: Position in /sys/block/*/stat: milliseconds in which a request was in progress.
_IO_TICKS: Final = 9
#: Thaws the file system at the path given when its input ends or after the given seconds, whichever comes first.
_WATCHDOG: Final = f"""\
import fcntl, os, select, sys
folder = os.open(sys.argv[1], os.O_RDONLY)
print("ready", flush=True)
select.select([0], [], [], float(sys.argv[2]))
try:
    fcntl.ioctl(folder, {_THAW}, 0)
except OSError:
    pass
"""


def run(*command: str) -> str:
    """Run a tool of the system and return its output. Raises Unavailable if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TOOL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from None
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def check_tools() -> None:
    """Raise Unavailable if a tool is missing or this process is not root's."""
    if os.geteuid() != 0:
        raise Unavailable("it needs root, for control groups and mounts")
    for name, package in _TOOLS.items():
        if shutil.which(name) is None:
            raise Unavailable(f"{name} is not installed (Debian: apt-get install {package})")


class Disk:
    """An ext4 file system of its own, mounted at `mount`. Make it with `make_disk`, and remove it with `remove`."""

    def __init__(self, image: Path, mount: Path, device: str) -> None:
        """device: its path, such as /dev/loop0."""
        self.image = image
        self.mount = mount
        self.device = device
        block = Path("/sys/block") / Path(device).name
        self._stat = block / "stat"
        self._queue = block / "queue"
        #: The numbers of the device, `major:minor`, as control groups name it.
        self.number = (block / "dev").read_text().strip()
        below = image.stat().st_dev
        #: The numbers of the device that has the image. Limit reads there: requests that wait at the loop device's own
        #: limit are not yet in progress, so that its utilisation stays low; those that wait below it are.
        self.below = f"{os.major(below)}:{os.minor(below)}"
        self._bounds = Path("/sys/class/bdi") / self.number

    def limit_dirty(self, size: int) -> None:
        """Have pages written once `size` bytes are dirty, and writers wait at that bound. Raises Unavailable."""
        try:
            (self._bounds / "strict_limit").write_text("1")
            (self._bounds / "max_bytes").write_text(str(size))
        except OSError as error:
            raise Unavailable(f"dirty pages of a device can't be bounded here: {error}") from None

    def lift_dirty_limit(self) -> None:
        """Have only the machine's own bounds of dirty pages hold again. Raises OSError."""
        (self._bounds / "max_ratio").write_text("100")
        (self._bounds / "strict_limit").write_text("0")

    def limit_queue(self, requests: int, size: int) -> None:
        """Let the device have so many requests in progress, of at most `size` bytes each. Raises Unavailable.

        Reads and writes then wait for each other, as at a disk that is saturated: a limit on reads alone would leave
        writes as quick as ever.
        """
        try:
            (self._queue / "nr_requests").write_text(str(requests))
            (self._queue / "max_sectors_kb").write_text(str(size >> 10))
        except OSError as error:
            raise Unavailable(f"the queue of a loop device can't be bounded here: {error}") from None

    def busy_seconds(self) -> float:
        """Return for how long the device has had requests in progress; the share of a second is its utilisation."""
        return busy_seconds(self._stat.read_text())

    @contextmanager
    def frozen(self, longest: float) -> Iterator[None]:
        """Freeze the file system inside a `with` block: every write to it hangs until the thaw.

        Another process thaws it after `longest` seconds, or when this process ends, whatever happens here.
        Raises Unavailable if it can't be frozen.
        """
        watchdog = subprocess.Popen(
            [sys.executable, "-c", _WATCHDOG, str(self.mount), str(longest)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert watchdog.stdin is not None
        assert watchdog.stdout is not None
        try:
            select.select([watchdog.stdout], [], [], _TOOL_SECONDS)
            folder = os.open(self.mount, os.O_RDONLY)
            try:
                fcntl.ioctl(folder, _FREEZE, 0)
            except OSError as error:
                raise Unavailable(f"a file system can't be frozen here: {error}") from None
            finally:
                os.close(folder)
            yield
        finally:
            watchdog.stdin.close()
            watchdog.stdout.close()
            watchdog.wait(_TOOL_SECONDS)

    def detach(self) -> None:
        """Thaw, unmount and detach the disk; its image stays."""
        thaw(self.mount)
        if self.mount.is_mount():
            run("umount", str(self.mount))
        run("losetup", "--detach", self.device)

    def remove(self) -> None:
        """Thaw, unmount and detach the disk, and delete its image."""
        self.detach()
        self.image.unlink(missing_ok=True)


def make_disk(folder: Path, name: str, size: int) -> Disk:
    """Make a disk of `size` bytes: `name`.img and the directory `name` in `folder`. Raises Unavailable."""
    image, mount = folder / f"{name}.img", folder / name
    try:
        with image.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        image.unlink(missing_ok=True)
        raise Unavailable(f"there is no room for a disk of {size >> 20} MB: {error}") from None
    try:
        return Disk(image, mount, attach(image, mount))
    except BaseException:
        image.unlink(missing_ok=True)
        raise


def attach(image: Path, mount: Path) -> str:
    """Make a file system in an image and mount it by a loop device; return the device's path. Raises Unavailable."""
    device = ""
    try:
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
        device = run("losetup", "--find", "--show", "--direct-io=on", str(image)).strip()
        mount.mkdir(exist_ok=True)
        if (Path("/sys/block") / Path(device).name / "loop" / "dio").read_text().strip() != "1":
            raise Unavailable(f"loop devices have no direct I/O on the file system of {image.parent}")
        run("mount", "-o", "noatime", device, str(mount))
        return device
    except BaseException:
        if device:
            run("losetup", "--detach", device)
        raise


def thaw(mount: Path) -> None:
    """Thaw a file system; one that is not frozen is left alone."""
    with contextlib.suppress(OSError):
        folder = os.open(mount, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _THAW, 0)
        finally:
            os.close(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove the disks that were made in a folder by a process that has ended, then the folder."""
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    ours = [(Path(path), kind) for path, kind in mounts if Path(path).parent == folder]
    for mount, kind in ours:
        if kind != _BELOW:
            thaw(mount)
            run("umount", str(mount))
    for device in loop_devices(run("losetup", "--list", "--json", "--output", "NAME,BACK-FILE"), folder):
        run("losetup", "--detach", device)
    for mount, kind in ours:
        if kind == _BELOW:
            run("umount", "--lazy", str(mount))
    shutil.rmtree(folder, ignore_errors=True)


def loop_devices(listed: str, folder: Path) -> list[str]:
    """Return the loop devices whose image is in `folder`, from the JSON of `losetup --list`."""
    devices = json.loads(listed)["loopdevices"] if listed.strip() else []
    return [one["name"] for one in devices if Path((one["back-file"] or "").split(" (")[0]).parent == folder]


def busy_seconds(text: str) -> float:
    """Return the seconds in which requests were in progress, from the text of /sys/block/DEVICE/stat."""
    return int(text.split()[_IO_TICKS]) / 1000
