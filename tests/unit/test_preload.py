"""The faults of `tests/preload.py` take effect; otherwise tests that rely on them would prove nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import preload
from tests.preload import Preload

pytestmark = pytest.mark.skipif(bool(preload.why_not()), reason=preload.why_not())


def run(faults: Preload, program: str, *arguments: object) -> str:
    """Return what a Python program prints under these faults."""
    command = [*faults.prefix, sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("seconds", [3600.5, -600.25])
def test_the_wall_clock_steps_and_the_monotonic_one_does_not(tmp_path: Path, seconds: float) -> None:
    faults = Preload(tmp_path, "one")
    program = (
        "import sys, time, datetime\n"
        "print(time.time(), time.monotonic(), datetime.datetime.now().timestamp(), time.time_ns() / 1e9, flush=True)\n"
        "sys.stdin.readline()\n"
        "print(time.time(), time.monotonic(), datetime.datetime.now().timestamp(), time.time_ns() / 1e9, flush=True)\n"
    )
    process = subprocess.Popen(
        [*faults.prefix, sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    before = [float(word) for word in process.stdout.readline().split()]
    assert all(abs(clock - time.time()) < 60 for clock in (before[0], before[2], before[3]))
    faults.step(seconds)
    after = [float(word) for word in process.communicate("go\n", timeout=60)[0].split()]
    passed = after[1] - before[1]
    assert 0 <= passed < 60
    for index in (0, 2, 3):
        assert after[index] - before[index] == pytest.approx(seconds + passed, abs=0.2)


def test_writes_below_one_directory_fail(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    for folder in (bad, good):
        folder.mkdir()
    faults = Preload(tmp_path, "one", failing=bad)
    program = (
        "import os, sys\n"
        "for path in sys.argv[1:]:\n"
        "    fd = os.open(path + '/f', os.O_RDWR | os.O_CREAT)\n"
        "    for call in (lambda: os.pwritev(fd, [b'x'], 0), lambda: os.write(fd, b'x'), lambda: os.fdatasync(fd)):\n"
        "        try:\n"
        "            call()\n"
        "            print('done')\n"
        "        except OSError as error:\n"
        "            print(error.errno)\n"
    )
    assert run(faults, program, bad, good).split() == ["done"] * 6
    faults.fail(True)
    assert run(faults, program, bad, good).split() == ["5", "5", "5", "done", "done", "done"]
    faults.fail(False)
    assert run(faults, program, bad).split() == ["done"] * 3


def test_writes_below_one_directory_hang(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    for folder in (bad, good):
        folder.mkdir()
    faults = Preload(tmp_path, "one", failing=bad)
    program = (
        "import os, sys, threading\n"
        "def write(path):\n"
        "    fd = os.open(path + '/f', os.O_RDWR | os.O_CREAT)\n"
        "    os.pwritev(fd, [b'x'], 0)\n"
        "    os.fdatasync(fd)\n"
        "    print('done', os.path.basename(path), flush=True)\n"
        "hanging = threading.Thread(target=write, args=sys.argv[1:2])\n"
        "hanging.start()\n"
        "write(sys.argv[2])\n"
        "hanging.join()\n"
    )
    faults.hang(True)
    command = [*faults.prefix, sys.executable, "-c", program, str(bad), str(good)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done good\n"
        assert (bad / "f").exists() and not (bad / "f").stat().st_size
        faults.hang(False)
        assert process.stdout.readline() == "done bad\n"
        assert process.wait(60) == 0


def test_a_power_loss_keeps_what_was_synced_and_no_more_than_was_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    faults = Preload(tmp_path, "one")
    program = (
        "import os, sys\n"
        "for number in range(20):\n"
        "    fd = os.open(f'{sys.argv[1]}/{number}', os.O_RDWR | os.O_CREAT)\n"
        "    os.pwritev(fd, [b'a' * 100], 0)\n"
        "    os.fdatasync(fd)\n"
        "    os.pwritev(fd, [b'b' * 100], 100)\n"
        "fd = os.open(f'{sys.argv[1]}/cut', os.O_RDWR | os.O_CREAT)\n"
        "os.pwritev(fd, [b'a' * 100], 0)\n"
        "os.fsync(fd)\n"
        "os.ftruncate(fd, 50)\n"
        "os.fsync(os.open(sys.argv[1], os.O_RDONLY))\n"
    )
    run(faults, program, data)
    lost = faults.lose_power([data], random.Random(1))
    sizes = [(data / str(number)).stat().st_size for number in range(20)]
    assert lost == sum(200 - size for size in sizes) > 0
    assert all(100 <= size <= 200 for size in sizes)
    assert sizes.count(100) > 10
    assert (data / "cut").read_bytes() == b"a" * 50
    assert faults.lose_power([data], random.Random(2)) == 0, "what is left is on the disk"


def test_a_power_loss_keeps_what_a_sync_of_the_volume_covered(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    faults = Preload(tmp_path, "one", failing=data)
    program = (
        "import os, sys\n"
        "from pylogd.broker.log.volume_sync import sync_volume\n"
        "lock = os.open(f'{sys.argv[1]}/.lock', os.O_RDWR | os.O_CREAT)\n"
        "for name in ('f', 'deep/f'):\n"
        "    fd = os.open(f'{sys.argv[1]}/{name}', os.O_RDWR | os.O_CREAT)\n"
        "    os.pwritev(fd, [b'a' * 100], 0)\n"
        "    sync_volume(lock)\n"
        "    os.pwritev(fd, [b'b' * 100], 100)\n"
    )
    run(faults, program, data)
    faults.lose_power([data], random.Random(1))
    first, second = ((data / name).stat().st_size for name in ("f", "deep/f"))
    assert first == 200, "the second sync covers all of it"
    assert 100 <= second <= 200
    faults.fail(True)
    only_sync = (
        "import os, sys\nfrom pylogd.broker.log.volume_sync import sync_volume\n"
        "try:\n    sync_volume(os.open(f'{sys.argv[1]}/.lock', os.O_RDWR))\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    assert run(faults, only_sync, data) == "Input/output error\n"


def test_writes_below_all_disks_hang(tmp_path: Path) -> None:
    """By each of the calls that may be a broker's: that of the compiled functions (pwrite) too."""
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
    faults = Preload(tmp_path, "one", failing=folders[1], disks=folders[:2])
    program = (
        "import os, sys, threading\n"
        "def write(path, call):\n"
        "    fd = os.open(path + '/f', os.O_RDWR | os.O_CREAT)\n"
        "    if call == 'pwrite':\n"
        "        os.pwrite(fd, b'x', 0)\n"
        "    else:\n"
        "        os.pwritev(fd, [b'x'], 0)\n"
        "    os.write(1, os.path.basename(path).encode() + b'\\n')\n"  # print writes the end of the line apart
        "for path in sys.argv[1:]:\n"
        "    for call in ('pwrite', 'pwritev'):\n"
        "        threading.Thread(target=write, args=(path, call)).start()\n"
        "os.write(1, b'begun\\n')\n"
    )
    faults.freeze(True)
    command = [*faults.prefix, sys.executable, "-c", program, *map(str, folders)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = sorted(process.stdout.readline().strip() for _ in range(3))
        faults.freeze(False)
        assert first == ["begun", "third", "third"]
        assert sorted(process.stdout.read().split()) == ["first", "first", "second", "second"]


def test_the_first_thread_stands_still_and_others_go_on(tmp_path: Path) -> None:
    """In its wait for events, while another thread takes the interpreter's lock."""
    faults = Preload(tmp_path, "one")
    program = (
        "import os, select, sys, threading, time\n"
        "def other():\n"
        "    for line in sys.stdin:\n"
        "        os.write(1, b'other ' + line.encode())\n"
        "threading.Thread(target=other, daemon=True).start()\n"
        "poller = select.epoll()\n"
        "os.write(1, b'begun\\n')\n"
        "poller.poll(0)\n"
        "os.write(1, b'first\\n')\n"
    )
    faults.stand_still(True)
    command = [*faults.prefix, sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        said = [process.stdout.readline()]
        for number in range(3):
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            said.append(process.stdout.readline())
        faults.stand_still(False)
        assert said == ["begun\n", "other 0\n", "other 1\n", "other 2\n"]
        assert process.stdout.read() == "first\n"
