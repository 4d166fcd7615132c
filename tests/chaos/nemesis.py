"""Inject faults into a cluster: one after the other, several at the same time, each undone after a while.

Faults are drawn from a seeded random source. Brokers are killed, paused, restarted and isolated; links are cut and
slowed, sessions expire, ZooKeeper restarts, replicas and leaders move; those of the topic `smooth` by smooth
expansions. Coordinators of groups fail just before a topic is deleted (`recreated`). Faults of disks and clocks:

- **wipe**: a broker is killed, and restarted without its data, or without one of its log directories.
- **lose_power**: several brokers are killed at once. Their files keep what was synced, and of later writes a random
  part, mostly nothing (`tests/preload.py`). They are restarted with another boot id of the machine.
- **fail_directory**: a log directory is renamed, or its writes and syncs fail with EIO, or, with write queues, do not
  return, while the broker runs. Later the directory is repaired, and the broker is asked to use it again, or restarted.
- **freeze**: all disks of the controller hang, as frozen file systems do, and maybe another broker is killed. Another
  broker has to become the controller meanwhile: that is checked at once. Later the disks continue.
- **fill**: the volume of one log directory is full for a while. Nothing is restarted.
- **step_clock**: the wall clock of one broker jumps by up to half an hour, forward or back.

Rules: no more copies are destroyed than the guarantee allows (`copies`); a disk that fails or fills up loses nothing.
Faults of links and the small volume need `links`; power, EIO and clocks need `preload`.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from pylogd.base.errors import PylogdError
from pylogd.local.broker import BrokerFailed, BrokerProcess
from pylogd.local.zookeeper import LocalZooKeeper
from pylogd.store.paths import OFFSETS_TOPIC
from tests.chaos import smooth
from tests.chaos.clusters import SMALL_DISK_NODE, ChaosCluster
from tests.chaos.copies import Copies
from tests.chaos.directories import away, boot_anew
from tests.chaos.frozen import FrozenControllers
from tests.chaos.links import STORE
from tests.chaos.recreated import RecreatedTopics

HEAL_SECONDS = 300.0
#: Seconds by which a clock is set forward. Brokers refuse records of more than an hour ahead.
_STEPS = (-1800.0, -600.0, -70.0, -5.0, 5.0, 70.0, 600.0, 1800.0)
Trouble = Callable[[], str]


class Nemesis:
    """The faults of one run. `say` is called with each event; `troubles` counts the faults by name."""

    def __init__(
        self,
        cluster: ChaosCluster,
        store: LocalZooKeeper,
        topics: Mapping[str, int],
        rng: random.Random,
        say: Callable[[str], object],
        *,
        expands: bool = True,
        recreated: RecreatedTopics | None = None,
    ) -> None:
        """topics: all topics with three replicas, and how many partitions they have.

        expands: whether there is the topic `smooth` besides, whose replicas move by smooth expansions.
        recreated: deletes and recreates topics, also just after the coordinator of a group has been killed.
        """
        self.troubles: Counter[str] = Counter()
        self._cluster = cluster
        self._store = store
        self._places = [(topic, index) for topic, count in topics.items() for index in range(count)]
        self._expands = expands
        self._recreated = recreated
        self._rng = rng
        self._say = say
        self._links = cluster.links
        self._copies = Copies(store.hosts, sorted({*topics, *([smooth.TOPIC] if expands else []), OFFSETS_TOPIC}))
        self._down: dict[int, float] = {}  # when to start it again
        self._stopping: dict[int, BrokerProcess] = {}
        self._paused: dict[int, float] = {}  # when to resume it
        self._failed: dict[int, float] = {}  # broker with a failed second directory -> when to repair it
        self._frozen = FrozenControllers(cluster, rng, self._kill_one)
        self._cut_until = 0.0
        self._full_until = 0.0
        self._disk = cluster.directories(SMALL_DISK_NODE)[0]

    def close(self) -> None:
        """Close the connections for observation."""
        self._copies.close()

    def trouble(self) -> None:
        """Undo due faults, and inject another one."""
        self._undo_what_is_due()
        troubles: list[Trouble] = [
            self._kill, self._kill, self._stop, self._pause, self._restart_store, self._reassign, self._elect,
            self._wipe, self._fail_directory,
        ]  # fmt: skip
        if self._expands:
            troubles += [self._expand, self._expand, self._kill_joining]
        if self._recreated is not None:
            troubles += [self._fail_coordinator, self._fail_coordinator]
        if self._links is not None:
            troubles += [self._cut, self._cut, self._isolate, self._expire, self._slow, self._fill]
        if self._cluster.faults:
            troubles += [self._lose_power, self._lose_power, self._step_clock, self._step_clock]
            if self._cluster.settings.get("log.write.queues") != "always":  # with which the directories fail
                troubles += [self._freeze, self._freeze]
        trouble = self._rng.choice(troubles)
        try:
            what = trouble()
        except PylogdError as error:
            self._say(f"{trouble.__name__[1:]}: {error}")
            return
        if what:
            self.troubles[trouble.__name__[1:]] += 1
            self._say(what)

    def heal(self) -> list[str]:
        """Undo all faults and start every broker. Return what went wrong: brokers that ended by themselves, and hung
        controllers that nobody replaced.
        """
        self._heal_links()
        self._thaw()
        if self._full_until:
            self._empty_disk()
        self._store.start()
        for node, faults in self._cluster.faults.items():
            if faults.step_seconds:
                faults.step(0.0)
                self._say(f"the clock of {node} is right")
        for node in list(self._paused):
            self._cluster.resume(node)
        self._paused.clear()
        for node in list(self._failed):
            self._put_right(node)
        deadline = time.monotonic() + HEAL_SECONDS
        while self._down and time.monotonic() < deadline:
            for node in list(self._down):
                del self._down[node]
                self._start(node)
        found = list(self._frozen.problems)
        for node, broker in list(self._cluster.brokers.items()):
            if broker.exit_code is not None:  # it gave up during a fault
                found.append(f"{node} ended by itself, with exit code {broker.exit_code}")
                self._say(found[-1])
                self._cluster.kill(node)
                self._start(node)
        return found

    # -- processes

    def _running(self) -> list[int]:
        return [node for node in sorted(self._cluster.brokers) if node not in (*self._paused, *self._frozen.nodes)]

    def _kill(self) -> str:
        running = self._running()
        if len(self._down) >= len(self._cluster.ports) - 1 or not running:
            return ""
        node = self._rng.choice(running)
        self._kill_one(node)
        return f"kill {node}"

    def _kill_one(self, node: int) -> None:
        self._cluster.kill(node)
        self._down[node] = self._in(0.0, 8.0)

    def _fail_coordinator(self) -> str:
        """Kill the coordinator of a group, or pause it for longer than its session, and have a topic recreated."""
        assert self._recreated is not None
        if len(self._down) >= len(self._cluster.ports) - 1:
            return ""
        group, node = self._recreated.coordinator()
        if node not in self._running():
            return ""
        kills = self._rng.random() < 0.5
        if kills:
            self._cluster.kill(node)
            self._down[node] = self._in(3.0, 12.0)
        else:
            self._cluster.pause(node)
            self._paused[node] = self._in(5.0, 12.0)
        self._recreated.delete_soon()
        return f"{'kill' if kills else 'pause'} {node}, which coordinates {group}"

    def _stop(self) -> str:
        """Stop a broker as a service manager does. What has not ended when it is to start again is killed."""
        running = self._running()
        if len(self._down) >= len(self._cluster.ports) - 1 or not running:
            return ""
        node = self._rng.choice(running)
        self._stopping[node] = broker = self._cluster.brokers.pop(node)
        broker.ask_to_stop()
        self._down[node] = self._in(1.0, 8.0)
        return f"stop {node}"

    def _pause(self) -> str:
        running = self._running()
        if not running:
            return ""
        node = self._rng.choice(running)
        self._cluster.pause(node)
        self._paused[node] = self._in(0.5, 9.0)
        return f"pause {node}"

    def _restart_store(self) -> str:
        seconds = self._rng.uniform(0.0, 3.0)
        self._store.kill()
        time.sleep(seconds)
        self._store.start()
        return f"ZooKeeper was away for {seconds:.1f} s"

    def _start(self, node: int) -> None:
        """Start a broker. If it ends because something that it needs is unreachable, try again later."""
        stopping = self._stopping.pop(node, None)
        if stopping is not None:
            stopping.kill()
        try:
            self._cluster.start(node)
            self._say(f"start {node}")
        except BrokerFailed as error:
            reason = str(error).strip().splitlines()[-1:]
            self._say(f"{node} did not start: {reason}")
            self._down[node] = time.monotonic() + 1.0

    # -- replicas

    def _reassign(self) -> str:
        topic, index = self._rng.choice(self._places)
        target = self._rng.sample(sorted(self._cluster.ports), 3)
        running = self._running()
        if not running:
            return ""
        node = self._rng.choice(running)
        wanted: Mapping[tuple[str, int], list[int]] = {(topic, index): target}
        (refused,) = self._cluster.ask(lambda admin: admin.reassign(wanted), node).values()
        return f"partition {index} of {topic} is to move to {target}" + (
            f", which is refused: {refused}" if refused else ""
        )

    def _expand(self) -> str:
        """Move a partition of the other topic, whose new replicas begin with the latest offset."""
        place = self._rng.choice(smooth.PLACES)
        target = self._rng.sample(sorted(self._cluster.ports), smooth.FACTOR)
        running = self._running()
        if not running:
            return ""
        node = self._rng.choice(running)
        self._cluster.ask(lambda admin: admin.reassign({place: target}, latest_wait=smooth.LATEST_WAIT), node)
        return f"partition {place[1]} of {place[0]} is to move smoothly to {target}"

    def _kill_joining(self) -> str:
        """Kill a broker that waits to join."""
        running = self._running()
        if len(self._down) >= len(self._cluster.ports) - 1 or not running:
            return ""
        moves = self._cluster.ask(lambda admin: admin.reassignments(smooth.PLACES), self._rng.choice(running))
        joining = sorted({node for move in moves.values() for node in move.adding if node in running})
        if not joining:
            return ""
        node = self._rng.choice(joining)
        self._kill_one(node)
        return f"kill {node}, which joins"

    def _elect(self) -> str:
        running = self._running()
        if not running:
            return ""
        node = self._rng.choice(running)
        self._cluster.ask(lambda admin: admin.elect_leaders(self._places), node)
        return "preferred leaders are elected"

    # -- links

    def _cut(self) -> str:
        assert self._links is not None
        source, target = self._rng.sample(sorted(self._cluster.ports), 2)
        both = self._rng.random() < 0.5
        self._links.cut(source, self._links.address(target))
        if both:
            self._links.cut(target, self._links.address(source))
        self._cut_for(1.0, 10.0)
        return f"cut {source} {'<->' if both else '->'} {target}"

    def _isolate(self) -> str:
        assert self._links is not None
        node = self._rng.choice(sorted(self._cluster.ports))
        for other in self._cluster.ports:
            if other != node:
                self._links.cut(node, self._links.address(other))
                self._links.cut(other, self._links.address(node))
        self._cut_for(1.0, 10.0)
        return f"isolate {node} from the other brokers"

    def _expire(self) -> str:
        """Let a broker's session expire while it runs."""
        assert self._links is not None
        node = self._rng.choice(sorted(self._cluster.ports))
        self._links.cut(node, STORE)
        self._cut_for(6.0, 10.0)
        return f"cut {node} from ZooKeeper for longer than its session lasts"

    def _slow(self) -> str:
        assert self._links is not None
        node = self._rng.choice(sorted(self._cluster.ports))
        kilobits = self._rng.choice((64, 256, 1000))
        self._links.slow(node, kilobits)
        self._cut_for(2.0, 10.0)
        return f"{node} sends {kilobits} kbit/s at most"

    def _cut_for(self, least: float, most: float) -> None:
        self._cut_until = max(self._cut_until, self._in(least, most))

    # -- disks

    def _fill(self) -> str:
        if self._full_until:
            return ""
        with (self._disk / "ballast").open("wb", buffering=0) as ballast:
            for chunk in (1 << 20, 4096, 512):
                try:
                    while True:
                        ballast.write(bytes(chunk))
                except OSError:
                    continue
        self._full_until = self._in(1.0, 8.0)
        return f"the disk of {SMALL_DISK_NODE} is full"

    def _wipe(self) -> str:
        running = self._running()
        if not running:
            return ""
        node = self._rng.choice(running)
        if not self._may_destroy([node]):
            return ""
        folders = [path for path in self._cluster.directories(node) if path.is_dir()]
        if self._rng.random() < 0.4:
            folders = [self._rng.choice(folders)]
        for folder in folders:
            for path in folder.iterdir():
                if path.name != "ballast":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._down[node] = self._in(0.0, 8.0)
        return f"wipe {', '.join(folder.name for folder in folders)}"

    def _lose_power(self) -> str:
        running = self._running()
        nodes = self._rng.sample(running, self._rng.randint(1, len(running))) if running else []
        if not nodes or not self._may_destroy(nodes):
            return ""
        lost = 0
        if SMALL_DISK_NODE in nodes and self._full_until:
            self._empty_disk()
        for node in nodes:
            folders = [path for path in self._cluster.directories(node) if path.is_dir()]
            lost += self._cluster.faults[node].lose_power(folders, self._rng)
            for folder in folders:
                boot_anew(folder)
            self._down[node] = self._in(0.0, 8.0)
        return f"{', '.join(map(str, nodes))} lose power, and {lost} bytes that were not synced"

    def _may_destroy(self, nodes: list[int]) -> bool:
        """Kill these brokers. Return whether their disks may be destroyed.

        They are paused before the first check, and checked again when they are dead, so that they acknowledge nothing
        in between, and none of them is the last with a record.
        """
        self._heal_links()  # sent data has to arrive before the check
        for node in nodes:
            self._cluster.pause(node)
        if not self._copies.may_lose(nodes):
            for node in nodes:
                self._cluster.resume(node)
            return False
        for node in nodes:
            self._cluster.kill(node)
            self._down[node] = self._in(0.0, 8.0)
        time.sleep(0.3)
        if not self._copies.may_lose(nodes):
            self._say(f"{nodes} were killed, and keep their disks: they may have the last copies")
            return False
        self._copies.lose(nodes)
        return True

    def _fail_directory(self) -> str:
        candidates = [node for node in self._running() if node not in self._failed]
        if not candidates:
            return ""
        node = self._rng.choice(candidates)
        second = self._cluster.directories(node)[1]
        inside = [(topic, index) for topic, index in self._copies.places() if (second / f"{topic}-{index}").is_dir()]
        self._cluster.pause(node)  # paused, so that it acknowledges nothing between check and failure
        try:
            if not self._copies.may_lose([node], inside):
                return ""
            self._copies.lose([node], inside)
            self._failed[node] = self._in(2.0, 12.0)
            how = self._rng.random() if self._cluster.faults else 1.0
            if how < 0.25 and self._cluster.settings.get("log.write.queues") == "always":
                self._cluster.faults[node].hang(True)
                return f"{second.name} hangs"
            if how < 0.5:
                self._cluster.faults[node].fail(True)
                return f"{second.name} fails with EIO"
            second.rename(away(second))
            second.write_text("")  # prevents its re-creation
        finally:
            self._cluster.resume(node)
        return f"{second.name} is gone"

    def _freeze(self) -> str:
        self._heal_links()  # they would keep others from replacing the controller
        return self._frozen.freeze(self._running(), self._failed)

    def _thaw(self, now: float = float("inf")) -> None:
        for node in self._frozen.thaw(now):
            self._say(f"the disks of {node} continue")

    def _put_right(self, node: int) -> None:
        """Repair a failed directory. Ask its broker to reopen it, or restart the broker."""
        del self._failed[node]
        second = self._cluster.directories(node)[1]
        if away(second).exists():
            second.unlink()
            away(second).rename(second)
        if self._cluster.faults:
            self._cluster.faults[node].fail(False)
        self._say(f"{second.name} is there again")
        if node in self._cluster.brokers and not self._reopen(node, second):
            self._paused.pop(node, None)
            self._cluster.kill(node)
            self._down[node] = time.monotonic()

    def _reopen(self, node: int, path: Path) -> bool:
        """Ask the broker to reopen the directory. Return whether it uses it again."""
        if node in self._paused or self._cut_until or self._rng.random() < 0.5:
            return False
        try:
            found = self._cluster.ask(lambda admin: admin.reopen_log_dir(node, str(path)), node)
        except PylogdError as error:
            self._say(f"{path.name} is not reopened: {error}")
            return False
        self._say(f"{path.name} is reopened: {found.error or 'in use'}")
        return found.error is None

    # -- clocks

    def _step_clock(self) -> str:
        node = self._rng.choice(sorted(self._cluster.ports))
        faults = self._cluster.faults[node]
        step = self._rng.choice([step for step in _STEPS if step != faults.step_seconds])
        by = step - faults.step_seconds
        faults.step(step)
        return f"the clock of {node} steps by {by:+.0f} s"

    # -- undoing

    def _in(self, least: float, most: float) -> float:
        return time.monotonic() + self._rng.uniform(least, most)

    def _undo_what_is_due(self) -> None:
        now = time.monotonic()
        for node in [node for node, until in self._paused.items() if until <= now]:
            del self._paused[node]
            self._cluster.resume(node)
            self._say(f"resume {node}")
        self._thaw(now)
        if self._full_until and self._full_until <= now:
            self._empty_disk()
        for node in [node for node, until in self._failed.items() if until <= now]:
            self._put_right(node)
        for node in [node for node, until in self._down.items() if until <= now]:
            if node != SMALL_DISK_NODE or not self._full_until:
                if self._cut_until:
                    self._heal_links()  # it would wait for them and block the run
                del self._down[node]
                self._start(node)
        if self._cut_until and self._cut_until <= now:
            self._heal_links()

    def _empty_disk(self) -> None:
        (self._disk / "ballast").unlink(missing_ok=True)
        self._full_until = 0.0
        self._say(f"the disk of {SMALL_DISK_NODE} has room")

    def _heal_links(self) -> None:
        if self._links is not None:
            self._links.heal()
        if self._cut_until:
            self._say("the links are whole")
        self._cut_until = 0.0
