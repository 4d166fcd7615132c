"""Kinds of experiments in which a broker has less than it would like: memory for its log, or a slow disk.

The broker runs in a control group that bounds its page cache, or on a disk of its own: an ext4 image behind a loop
device with a short queue, on which few pages may be dirty (`bench/lab/laboratory.py`). Both need root. A broker joins
its group when it has started: what it has allocated before, such as Kafka's heap, is not counted in the group.

While the work is done, messages go to a reader at the tail of the log. The delay that they suffer is reported too.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from bench.lab.cgroups import ControlGroup, Unavailable
from bench.lab.laboratory import IMAGES, QUEUE, Laboratory, laboratory
from bench.loads import Said
from bench.peers import Peer, running
from bench.peers.base import read_from_disk
from bench.results import slug
from bench.rounds import Ready, Rounds, Sample, Setup, measured, prepare, produced, warm
from conformance.checks import Missing

#: The page cache of a broker whose reads are cold, in bytes. Its log is twice as large.
MEMORY: Final = 1 << 30
_TIMES: Final = 2
#: The slow disk: its size, and how many bytes of it may be dirty.
_DISK: Final = 8 << 30
_DIRTY: Final = 64 << 20
_SPEED: Final = 100e6  # about so many bytes a second it takes


@contextmanager
def _laboratory(peer: str) -> Iterator[Laboratory]:
    """Yield a laboratory for a broker, beside those of others. Raises Missing if there can't be one here."""
    images = IMAGES / f"pylogd-bench-{slug(peer)}"
    images.mkdir(exist_ok=True)
    try:
        with laboratory(images) as lab:
            yield lab
    except Unavailable as error:
        raise Missing(str(error)) from None
    finally:
        with contextlib.suppress(OSError):
            images.rmdir()


def cold(setup: Setup) -> Rounds:
    """Read a log of twice the memory from its start, again and again, while messages go to a reader at the tail."""
    count = int(_TIMES * MEMORY * setup.scale) // setup.experiment.size
    with _laboratory(setup.peer) as lab, running(setup.peer, setup.folder) as peer:
        group = lab.group(slug(setup.peer))
        group.limit_memory(int(MEMORY * setup.scale))
        join(group, peer)
        prepare(setup, peer)
        setup.load.produce(peer, setup.work(count))
        [said] = setup.load.consume(peer, setup.work(count))
        count = yield Ready(said.messages / said.seconds)
        while True:
            before = read_from_disk(peer.pids())
            sample = _beside_tail(setup, peer, count, lambda number: setup.load.consume(peer, setup.work(number)))
            read = (read_from_disk(peer.pids()) - before) / 1e6
            count = yield sample | {"missed": 100 * read / (sample["megabytes"] * sample["seconds"])}


def overrun(setup: Setup) -> Rounds:
    """Write more than the disk takes, while messages go to a reader at the tail."""
    with _laboratory(setup.peer) as lab:
        disk = lab.disk(slug(setup.peer), _DISK)
        disk.limit_queue(*QUEUE)
        with running(setup.peer, disk.mount) as peer:
            prepare(setup, peer)
            warm(setup, peer)
            os.sync()
            disk.limit_dirty(_DIRTY)
            count = int(_SPEED * setup.seconds) // setup.experiment.size
            yield Ready()
            while True:
                yield _beside_tail(setup, peer, count, partial(produced, setup, peer))


def join(group: ControlGroup, peer: Peer) -> None:
    """Move a broker's processes into a control group."""
    for pid in peer.pids():
        for folder in group.folders:
            (folder / "cgroup.procs").write_text(str(pid))


def _beside_tail(setup: Setup, peer: Peer, count: int, work: Callable[[int], Sequence[Said]]) -> Sample:
    """Do the work on `count` messages while others go to a reader at the tail. Return both results in one sample."""
    tail: list[Said] = []
    failures: list[BaseException] = []
    thread = threading.Thread(target=_tail, args=(setup, peer, tail, failures))
    thread.start()
    try:
        sample = measured(peer, count, partial(work, count))
    finally:
        thread.join()
    if failures:
        raise RuntimeError(f"the tail reader: {failures[0]}")
    [said] = tail
    return sample | {"tail99": said.percentiles["p99"] * 1000, "tail highest": said.percentiles["highest"] * 1000}


def _tail(setup: Setup, peer: Peer, found: list[Said], failures: list[BaseException]) -> None:
    try:
        count = int(setup.experiment.rate * setup.seconds)
        found.append(setup.load.latency(peer, setup.work(count)))
    except Exception as error:
        failures.append(error)
