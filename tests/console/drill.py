"""Make four faults on a real cluster, and mend them with the console: `python -m tests.console.drill [--results FILE]`.

Three brokers, of which the first has a small volume, are written to and read all the time. A user of headless Chromium
looks at pages and fills in forms as docs/fault-drill.md tells it; only what a console can't do (start a process) is
done outside. Times are those of the console as it is installed: a sample every ten seconds. Needs to mount a tmpfs.
Exit status 1 if a fault is not seen or not mended.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pylogd.base.errors import PylogdError
from pylogd.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from pylogd.credentials.passwords import add_user
from pylogd.local.broker import BrokerProcess, pylogd_command
from pylogd.local.cluster import LocalCluster
from tests.console.__main__ import running, wait_for_sample_of
from tests.console.browsing import NARROW, WIDE, Browser
from tests.pages import circumstances, write_page

_USER, _PASSWORD = "ada", "correct horse"
_PATIENCE: Final = 150.0
_MOUNT: Final = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=256m none "$0" && exec "$@"')
_SETTINGS: Final = {
    "log.retention.check.interval.ms": "10000", "log.segment.delete.delay.ms": "10000", "min.insync.replicas": "2"
}  # fmt: skip
_SMALL, _VICTIM = 1, 2
_PARTITIONS: Final = 6
_NOISY: Final = "session-4711"
_LOG_CHARACTERS: Final = 5000
_LOG_LINE: Final = b"level=DEBUG " + bytes(range(97, 123)) * 4000


class Step(NamedTuple):
    """A step of a fault: what happened, and how many seconds after the step before it."""

    fault: str
    what: str
    seconds: float


class SmallVolume(LocalCluster):
    """Three brokers, of which one has its data on a small volume."""

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        """Run a broker's process."""
        data = self.folder / f"broker{node}"
        data.mkdir(parents=True, exist_ok=True)
        prefix = [*_MOUNT, str(data)] if node == _SMALL else []
        return BrokerProcess(
            data, self.folder / f"broker{node}.log", settings, port=self.ports[node], prefix=prefix, wait=False
        )  # fmt: skip


class Applications:
    """What writes to and reads from the cluster. The consumer ends at a message that it does not understand."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopped = threading.Event()
        self.noisy = threading.Event()
        self._threads: list[threading.Thread] = []
        self.consumer_died = threading.Event()

    def run(self, work: Callable[[], None]) -> None:
        """Run something until `stop`."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """End all of them."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)

    def orders(self) -> None:
        """Write 200 orders a second."""
        self._write("orders", lambda number: (b"customer-%d" % (number % 997), {}))

    def clicks(self) -> None:
        """Write clicks of many sessions, and while `noisy` is set ten times as many of a single one."""
        self._write("clicks", self._click, client_id="web-shop")

    def _click(self, number: int) -> tuple[bytes, Mapping[str, str]]:
        if self.noisy.is_set() and number % 11:
            return _NOISY.encode(), {"client": "web-shop"}
        return b"session-%d" % (number % 4096), {"client": "web-shop"}

    def _write(self, topic: str, make: Callable[[int], tuple[bytes, Mapping[str, str]]], **options: Any) -> None:
        with Producer(self._bootstrap, delivery_timeout=120, **options) as producer:
            number = 0
            while not self._stopped.wait(0.1):
                for _ in range(220 if topic == "clicks" and self.noisy.is_set() else 20):
                    key, headers = make(number)
                    value = json.dumps({"number": number, "padding": "x" * 100}).encode()
                    pairs = [(name, text.encode()) for name, text in headers.items()]
                    producer.send(topic, value, key=key, headers=pairs)
                    number += 1

    def billing(self) -> None:
        """Read orders in the group `billing`, and end at a message that is no JSON, like an application that dies."""
        with Consumer(self._bootstrap, group_id="billing", auto_commit="off", auto_offset_reset="earliest") as consumer:
            consumer.subscribe("orders")
            while not self._stopped.is_set():
                done: dict[TopicPartition, int] = {}
                try:
                    for record in consumer.poll(1.0):
                        json.loads(record.value or b"")
                        done[TopicPartition(record.topic, record.partition)] = record.offset + 1
                except ValueError:
                    self.consumer_died.set()
                finally:
                    if done:
                        consumer.commit(done)
                if self.consumer_died.is_set():
                    return


class Drill:
    """The four faults. steps: what happened so far."""

    def __init__(self, browser: Browser, cluster: LocalCluster, applications: Applications, pictures: Path) -> None:
        self._browser, self._cluster, self._applications = browser, cluster, applications
        self._pictures = pictures
        self.steps: list[Step] = []
        self._fault = ""
        self._at = 0.0

    def begin(self, fault: str) -> None:
        """Begin a fault: times count from now."""
        self._fault, self._at = fault, time.monotonic()

    def step(self, what: str) -> None:
        """Note a step."""
        now = time.monotonic()
        self.steps.append(Step(self._fault, what, now - self._at))
        self._at = now
        print(f"{self._fault}: {what} ({self.steps[-1].seconds:.0f} s)", flush=True)

    def see(self, path: str, text: str, *more: str) -> str:
        """Open a page again and again until it has all texts; return what it says."""
        end = time.monotonic() + _PATIENCE
        while True:
            self._browser.open("/c/main" + path)
            page = self._browser.text()
            if all(one in page for one in (text, *more)):
                return page
            assert time.monotonic() < end, f"{path} does not say {text!r}:\n{page}"
            time.sleep(0.5)

    def keep(self, name: str) -> None:
        """Keep a picture of the page."""
        self._browser.keep(self._pictures / f"drill-{name}.png")

    def act(self, path: str, outcome: str, picture: str = "", **fields: str) -> None:
        """Fill in the form of an action, look at its plan, and confirm it."""
        browser = self._browser
        browser.open("/c/main" + path)
        browser.fill(**fields)
        browser.submit()
        browser.until(lambda: "Nothing has been changed yet" in browser.text(), "the plan")
        if picture:
            self.keep(picture)
        browser.submit()
        browser.until(lambda: outcome in browser.text(), "the outcome")

    def disk_full(self) -> None:
        """An application writes debug logs without end, and fills the disk of a broker."""
        with Admin(self._cluster.bootstrap) as admin:
            settings = {"segment.bytes": str(8 << 20), "min.insync.replicas": "1"}
            admin.create_topics([NewTopic("debug-log", configs=settings, assignments={0: [_SMALL]})])
        self.begin("full disk")
        fill(self._cluster.bootstrap)
        self.step("the volume of broker 1 is full")
        self.see("", "less than 5 % free", f"broker{_SMALL} of broker {_SMALL}")
        self.step("the overview says which directory has less than 5 % free")
        self.keep("disk-overview")
        self.see("/brokers", "free")
        self.see("/topics?sort=size", "debug-log")
        self.step("the topics by size: debug-log has most of it, on this broker alone")
        self.keep("disk-topics")
        self.act("/topics/debug-log/change-settings", "were changed", "disk-plan", settings="retention.bytes=33554432")
        self.step("retention of debug-log shortened: plan, confirm")
        self.see("", "healthy")
        self.step("the cluster is healthy")

    def dead_broker(self) -> None:
        """A broker dies."""
        self.begin("dead broker")
        self._cluster.kill(_VICTIM)
        self.step("broker 2 is killed")
        self.see("", "1 brokers that have replicas are not there: 2")
        self.step("the overview says that broker 2 is not there, and what that means for partitions")
        self.keep("dead-overview")
        self.see("/brokers", "is not there")
        self.keep("dead-brokers")
        self._cluster.start(_VICTIM)
        self.step("the broker is started again, as its service would be")
        self.see("", "healthy")
        self.step("the cluster is healthy: all replicas are in sync")
        self.act(f"/brokers/{_VICTIM}/maintenance", "may get new replicas", "", do="end")
        self.see(f"/brokers/{_VICTIM}", "Leads")
        self.step("broker 2 is asked to lead its share again")

    def laggard(self) -> None:
        """An application dies at a message that it can't read, whenever it is started."""
        self.begin("laggard")
        with Producer(self._cluster.bootstrap) as producer:
            delivery = producer.send("orders", b"not JSON at all", key=b"customer-1")
            offset = delivery.result(60)
        partition = delivery.partition
        assert self._applications.consumer_died.wait(60)
        self.step("the consumer of the group billing has died")
        self.see("", "billing")
        self.see("/groups/billing", "Empty")
        self.step("the group's page: no members, and a lag that grows in all partitions")
        self.keep("lag-group")
        assert self._first_message_that("not JSON") == (partition, offset)
        self.step("the messages at the committed offsets: that of one partition is no JSON")
        self.keep("lag-messages")
        self.act(
            "/groups/billing/reset", "were changed", "lag-plan", topic="orders", partitions=str(partition), to="offset",
            value=str(offset + 1),
        )  # fmt: skip
        self.step("the group is moved behind that message: plan, confirm")
        self._applications.consumer_died.clear()
        self._applications.run(self._applications.billing)
        self.see("/groups/billing", "Stable")
        self._caught_up()
        self.step("the consumer is started again, and has caught up")

    def _first_message_that(self, has: str) -> tuple[int, int]:
        """Look at the message at the group's committed offset in each partition, until one has a text.

        Return its partition and offset.
        """
        self._browser.open("/c/main/groups/billing")
        script = (
            "return [...document.querySelectorAll('tbody tr')].map(row => [...row.cells].map(one => one.innerText))"
        )
        for place, _, _, committed, _ in self._browser.run(script):
            partition, offset = int(place.rpartition(":")[2]), int(committed.replace(",", ""))
            self._browser.open(f"/c/main/topics/orders/messages?partition={partition}&from={offset}&count=5")
            if has in self._browser.text():
                return partition, offset
        raise AssertionError(f"no message has {has!r}")

    def _caught_up(self) -> None:
        """Wait until the group's page shows a lag of a few seconds at most."""
        end = time.monotonic() + _PATIENCE
        while True:
            self._browser.open("/c/main/groups/billing")
            script = "return [...document.querySelectorAll('.figures dd')].map(one => one.innerText)"
            lag = str(self._browser.run(script)[1]).replace(",", "")
            if lag.isdecimal() and int(lag) < 1000:
                return
            assert time.monotonic() < end, f"the lag is {lag}"
            time.sleep(0.5)

    def hot_partition(self) -> None:
        """A single session writes far more clicks than all others together."""
        self.begin("hot partition")
        self._applications.noisy.set()
        self.see("/topics/clicks?sort=rate", "look at the keys of its messages")
        self.step("the topic's page: one partition has far more than its share of the rate")
        self.keep("hot-topic")
        self._browser.driver.find_element("partial link text", "look at the keys").click()
        self._browser.until(lambda: _NOISY in self._browser.text(), "the messages")
        self.step("its messages: one key, and which client writes them")
        self.keep("hot-messages")
        self.act(
            "/set-quota", "was set", "hot-plan", client_id="web-shop", quota="producer_byte_rate", value="10000"
        )  # fmt: skip
        self.step("a quota holds the client back until it is mended: plan, confirm")
        self._applications.noisy.clear()
        self.step("the application is mended")
        self.act("/set-quota", "was removed", "", client_id="web-shop", quota="producer_byte_rate", value="")
        self._gone("/topics/clicks", "look at the keys of its messages")
        self.step("the quota is removed, and the partition is no busier than the others")

    def _gone(self, path: str, text: str) -> None:
        end = time.monotonic() + _PATIENCE
        while True:
            self._browser.open("/c/main" + path)
            if text not in self._browser.text():
                return
            assert time.monotonic() < end, f"{path} still says {text!r}"
            time.sleep(0.5)

    def narrow(self) -> None:
        """Keep a picture of a new page in a narrow window."""
        self._browser.look(NARROW, dark=False)
        self.see("/brokers", "Directories")
        self.keep("narrow")
        self._browser.look(WIDE, dark=False)


def fill(bootstrap: str) -> None:
    """Write until the broker takes no more."""
    with suppress(PylogdError), Producer(bootstrap, delivery_timeout=5, batch_bytes=1 << 20) as producer:
        while True:
            for delivery in [producer.send("debug-log", _LOG_LINE) for _ in range(20)]:
                delivery.result(60)
            time.sleep(0.2)  # no application fills a disk at once


@contextmanager
def console_of(bootstrap: str, folder: Path) -> Iterator[str]:
    """Run a console as an operator would; yield where it answers."""
    add_user(folder / "users", _USER, _PASSWORD)
    file = folder / "console.toml"
    file.write_text(f'[clusters.main]\nbootstrap = "{bootstrap}"\n\n[roles]\nadmin = ["user:{_USER}"]\n')
    command = [
        *pylogd_command(), "console", "--config", str(file), "--listen", "127.0.0.1:0", "--allow-writes", "--users",
        str(folder / "users"), "--action-log", str(folder / "actions.jsonl"),
    ]  # fmt: skip
    with running(command, folder / "console.log") as (_, line):
        base = line.rpartition(" ")[2]
        wait_for_sample_of(base + "/c/main", 2, (_USER, _PASSWORD))
        yield base


def log_in(browser: Browser) -> None:
    """Log in by the form."""
    browser.look(WIDE, dark=False)
    browser.open("/login")
    browser.fill(user=_USER, password=_PASSWORD)
    browser.submit()
    browser.until(lambda: "Brokers" in browser.text(), "the overview")


def report(steps: Sequence[Step]) -> list[str]:
    """Return the page of results."""
    return [
        "# Four faults, mended with the console", "",
        "Written by `make drill`; docs/fault-drill.md tells the story.", "",
        circumstances(), "",
        "The console takes a sample every ten seconds, as by default. Seconds are those since the step before.", "",
        "| fault | step | seconds |", "| --- | --- | ---: |",
        *(f"| {one.fault} | {one.what} | {one.seconds:.1f} |" for one in steps),
    ]  # fmt: skip


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="write this page")
    parser.add_argument("--pictures", type=Path, default=Path("docs/console"), help="keep pictures in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with SmallVolume(folder / "cluster", 3, settings=_SETTINGS) as cluster:
            with Admin(cluster.bootstrap) as admin:
                for topic in ("orders", "clicks"):
                    admin.create_topic(topic, _PARTITIONS, 3)
            applications = Applications(cluster.bootstrap)
            for work in (applications.orders, applications.clicks, applications.billing):
                applications.run(work)
            try:
                steps = drill(cluster, applications, folder, options.pictures)
            except AssertionError:
                for node in cluster.ports:
                    print(f"--- broker {node}\n{cluster.log(node)[-_LOG_CHARACTERS:]}", file=sys.stderr)
                raise
            finally:
                applications.stop()
            actions = (folder / "actions.jsonl").read_text().splitlines()
    lines = report(steps)
    lines += ["", f"The console logged {len(actions)} lines of actions: what began, and how it ended."]
    print("\n".join(lines))
    if options.results is not None:
        write_page(options.results, lines)
    return 0


def drill(cluster: LocalCluster, applications: Applications, folder: Path, pictures: Path) -> list[Step]:
    """Go through all faults in a browser. Return the steps. Raises AssertionError for what is not seen in time."""
    with console_of(cluster.bootstrap, folder) as base:
        browser = Browser(base)
        try:
            log_in(browser)
            found = Drill(browser, cluster, applications, pictures)
            found.see("", "healthy")
            for fault in (found.disk_full, found.dead_broker, found.laggard, found.hot_partition, found.narrow):
                fault()
            return found.steps
        finally:
            browser.close()


if __name__ == "__main__":
    sys.exit(main())
