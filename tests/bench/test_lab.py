"""The parts of the laboratory that need no root: counters, files of groups, leftovers of killed runs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from bench.lab import cgroups, disks
from bench.lab import laboratory as lab
from bench.lab.cgroups import GroupV1, GroupV2, Unavailable

DEVICE = "7:3"


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    for controller in ("memory", "blkio"):
        (tmp_path / controller).mkdir()
    return tmp_path


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return tmp_path


def test_version_1_keeps_a_group_in_two_hierarchies(v1: Path) -> None:
    group = cgroups.make_group("g", v1)
    assert isinstance(group, GroupV1)
    group.limit_memory(1 << 20)
    group.limit_disk(DEVICE, read_bps=5, write_iops=6)
    assert (v1 / "memory/g/memory.limit_in_bytes").read_text() == "1048576"
    assert (v1 / "blkio/g/blkio.throttle.read_bps_device").read_text() == "7:3 5"
    assert (v1 / "blkio/g/blkio.throttle.write_iops_device").read_text() == "7:3 6"


def test_version_1_counts_only_where_a_limit_is_set(v1: Path) -> None:
    group = cgroups.make_group("g", v1)
    group.count(DEVICE)
    device, limit = (v1 / "blkio/g/blkio.throttle.read_bps_device").read_text().split()
    assert device == DEVICE
    assert int(limit) > 1e12


def test_version_1_counters(v1: Path) -> None:
    group = cgroups.make_group("g", v1)
    text = "7:30 Read 1\n7:3 Read 4096\n7:3 Write 7\n7:3 Total 4103\nTotal 4104\n"
    (v1 / "blkio/g/blkio.throttle.io_service_bytes").write_text(text)
    (v1 / "memory/g/memory.stat").write_text("cache 8192\nrss 100\n")
    (v1 / "memory/g/memory.usage_in_bytes").write_text("9000\n")
    assert (group.read_bytes(DEVICE), group.read_bytes("8:0")) == (4096, 0)
    assert (group.page_cache(), group.memory()) == (8192, 9000)


def test_version_2(v2: Path) -> None:
    group = cgroups.make_group("g", v2)
    assert isinstance(group, GroupV2)
    assert (v2 / "cgroup.subtree_control").read_text() == "+memory +io"
    group.limit_disk(DEVICE, read_bps=5, write_bps=6)
    assert (v2 / "g/io.max").read_text() == "7:3 rbps=5 wbps=6"
    (v2 / "g/io.stat").write_text("254:0 rbytes=1 wbytes=2 rios=3\n7:3 rbytes=4096 wbytes=0 rios=1\n")
    (v2 / "g/memory.stat").write_text("anon 1\nfile 8192\n")
    (v2 / "g/memory.current").write_text("9000\n")
    assert (group.read_bytes(DEVICE), group.read_bytes("8:0")) == (4096, 0)
    assert (group.page_cache(), group.memory()) == (8192, 9000)


def test_a_machine_without_the_controllers_is_told_why(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="neither"):
        cgroups.group_class(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    with pytest.raises(Unavailable, match="lack the controller io"):
        cgroups.group_class(tmp_path)


def test_the_prefix_enters_every_hierarchy_and_then_runs_the_command(v1: Path) -> None:
    group = cgroups.make_group("g", v1)
    done = subprocess.run(
        [*group.prefix, "sh", "-c", 'echo "$$ $1"', "x", "a b"], capture_output=True, text=True, check=True
    )
    pid, _, argument = done.stdout.strip().partition(" ")
    assert argument == "a b"
    assert [(folder / "cgroup.procs").read_text().strip() for folder in group.folders] == [pid, pid]


def test_the_groups_of_a_prefix_are_found(v1: Path) -> None:
    for name in ("a-1", "a-2", "b-1"):
        cgroups.make_group(name, v1)
    assert list(cgroups.group_names("a-", v1)) == ["a-1", "a-2"]


def test_what_another_run_uses_is_no_leftover() -> None:
    own = f"{lab.PREFIX}{os.getpid()}-{lab._started(os.getpid())}"
    assert lab.owner_runs(f"{own}-broker")
    assert not lab.owner_runs(f"{lab.PREFIX}{os.getpid()}-1")  # the process id is in use again
    assert lab.owner_runs("of-somebody-else")


def test_leftover_folders_are_removed_and_others_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    monkeypatch.setattr(cgroups, "group_names", lambda _: [])
    monkeypatch.setattr(disks, "remove_leftovers", lambda folder: removed.append(folder.name))
    dead, alive = f"{lab.PREFIX}{os.getpid()}-1", f"{lab.PREFIX}{os.getpid()}-{lab._started(os.getpid())}"
    for name in (dead, alive, "other"):
        (tmp_path / name).mkdir()
    lab.remove_leftovers(tmp_path)
    assert removed == [dead]


def test_loop_devices_are_found_by_their_image() -> None:
    listed = {
        "loopdevices": [
            {"name": "/dev/loop0", "back-file": "/x/run/a.img"},
            {"name": "/dev/loop1", "back-file": "/x/run/b.img (deleted)"},
            {"name": "/dev/loop2", "back-file": "/x/other/a.img"},
        ]
    }
    assert disks.loop_devices(json.dumps(listed), Path("/x/run")) == ["/dev/loop0", "/dev/loop1"]
    assert disks.loop_devices("", Path("/x/run")) == []


def test_the_time_in_which_a_device_was_busy() -> None:
    assert disks.busy_seconds("  10 0 80 5 20 0 160 9 0 1234 14 0 0 0 0 0 0\n") == 1.234
