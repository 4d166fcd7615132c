"""Use the console in headless Chromium: `python -m tests.console.flows [--kafka] [--results FILE] [--pictures FOLDER]`.

A broker of pylogd, or Apache Kafka with `--kafka`, has topics, a group that lags, and a console with a login that may
write. Each page is judged by axe at 1280 and 360 pixels, light and dark; then a user does by keyboard and forms what an
operator does. Exit status 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pylogd.client import Admin, Consumer, Producer
from pylogd.credentials.passwords import add_user
from pylogd.local.broker import BrokerProcess, pylogd_command
from tests.console.__main__ import running, wait_for_sample_of
from tests.console.browsing import ESCAPE, NARROW, WIDE, Browser
from tests.console.services import make_table, served
from tests.pages import circumstances, write_page

PAGES: Final = (
    "", "/topics", "/topics/orders", "/topics/orders/messages", "/topics/orders/messages/tail",
    "/topics/orders/settings", "/groups", "/groups/billing", "/groups/billing/members", "/brokers", "/brokers/{node}",
    "/admin", "/reassignments", "/quotas", "/users", "/acls", "/create-topic", "/topics/orders/produce",
    "/topics/orders/delete", "/groups/billing/reset", "/set-user", "/brokers/{node}/maintenance", "/mirrors",
    "/mirrors/route-042", "/audit", "/tables", "/tables/lake", "/schemas",
)  # fmt: skip
_USER, _PASSWORD = "ada", "correct horse"
_RECORDS: Final = 3000


@dataclass
class Outcome:
    """What was looked at and done. problems: by page and look. flows: with what went wrong, "" for nothing."""

    pages: int = 0
    problems: list[str] = field(default_factory=list)
    flows: dict[str, str] = field(default_factory=dict)


def fill(bootstrap: str) -> None:
    """Make topics, messages, and a group that has read half of them."""
    with Admin(bootstrap) as admin:
        for name, partitions in (("orders", 6), ("clicks", 12), ("audit-events", 3)):
            admin.create_topic(name, partitions, 1)
    write(bootstrap, _RECORDS)
    with Consumer(bootstrap, group_id="billing", auto_offset_reset="earliest") as consumer:
        consumer.subscribe("orders")
        seen = 0
        while seen < _RECORDS // 2:
            seen += len(consumer.poll(5.0))
        consumer.commit()
    write(bootstrap, 500)


def write(bootstrap: str, count: int) -> None:
    """Write messages."""
    with Producer(bootstrap) as producer:
        for number in range(count):
            customer = {"name": f"c{number % 7}", "card": f"4111-{number:04}"}
            value = json.dumps({"order": number, "customer": customer}).encode()
            producer.send("orders", value, key=b"%d" % number, headers=[("trace", b"%d" % number)])


@contextmanager
def pylogd_broker(folder: Path) -> Iterator[str]:
    """Run a broker of pylogd."""
    broker = BrokerProcess(folder / "data", folder / "broker.log")
    try:
        yield broker.address
    finally:
        broker.stop()


@contextmanager
def kafka_broker(folder: Path) -> Iterator[str]:
    """Run Apache Kafka."""
    from conformance import kafka_peer  # noqa: PLC0415 - needs Java

    with kafka_peer.running(folder) as bootstrap:
        yield bootstrap


@contextmanager
def console_of(bootstrap: str, folder: Path, url: str) -> Iterator[str]:
    """Run a console with a login, masking, writes and services at `url`; yield where it answers."""
    add_user(folder / "users", _USER, _PASSWORD)
    file = folder / "console.toml"
    table = make_table(folder, {"orders": 6})
    file.write_text(
        f'[clusters.main]\nbootstrap = "{bootstrap}"\nmirrors = ["{url}/metrics"]\naudit = "{url}/"\n'
        f'[clusters.main.tables.lake]\nlocation = "{table}"\n\n'
        '[[masking]]\ntopics = "orders"\nfields = ["customer.card"]\n'
    )
    command = [
        *pylogd_command(), "console", "--config", str(file), "--listen", "127.0.0.1:0", "--interval", "1",
        "--allow-writes", "--users", str(folder / "users"), "--action-log", str(folder / "actions.jsonl"),
    ]  # fmt: skip
    with running(command, folder / "console.log") as (_, line):
        base = line.rpartition(" ")[2]
        wait_for_sample_of(base + "/c/main", 3, (_USER, _PASSWORD))
        yield base


class Flows:
    """What an operator does, each step a method that raises AssertionError."""

    def __init__(self, browser: Browser, bootstrap: str) -> None:
        self._browser = browser
        self._bootstrap = bootstrap

    def log_in(self) -> None:
        """Log in, after a wrong password."""
        browser = self._browser
        browser.open("/c/main/groups")
        browser.fill(user=_USER, password="wrong")
        browser.submit()
        browser.until(lambda: "The user or the password is wrong." in browser.text(), "the refusal")
        browser.driver.get_log("browser")  # the refusal is an error for the browser
        browser.open("/c/main/groups")
        browser.fill(user=_USER, password=_PASSWORD)
        browser.submit()
        browser.until(lambda: "billing" in browser.text(), "the page that was wanted")

    def by_keyboard(self) -> None:
        """Go from page to page, filter, and move through rows by keys."""
        browser = self._browser
        browser.open("/c/main")
        browser.press("g", "t")
        browser.until(lambda: browser.driver.current_url.endswith("/c/main/topics"), "the topics")
        browser.press("/")
        browser.press("click\n")
        browser.until(lambda: "q=click" in browser.driver.current_url, "the filter")
        browser.until(lambda: "orders" not in browser.text(), "the filtered list")
        browser.run("document.activeElement.blur()")
        browser.press("j")
        assert browser.driver.switch_to.active_element.text == "clicks"
        browser.press("?")
        assert browser.run("return document.getElementById('shortcuts').open")
        browser.press(ESCAPE)
        before = browser.run("return getComputedStyle(document.body).backgroundColor")
        browser.press("d")
        assert browser.run("return getComputedStyle(document.body).backgroundColor") != before
        browser.press("d")

    def live(self) -> None:
        """See new samples without loading the page again."""
        browser = self._browser
        browser.open("/c/main/topics/orders")
        browser.run("window.notReloaded = true")
        before = browser.run("return document.querySelector('.age').innerText")
        write(self._bootstrap, 700)
        browser.until(lambda: browser.run("return document.querySelector('.age').innerText") != before, "a sample")
        browser.until(lambda: browser.run("return document.querySelector('.chart canvas') !== null"), "the chart")
        assert browser.run("return window.notReloaded")

    def tail(self) -> None:
        """Follow a topic."""
        browser = self._browser
        browser.open("/c/main/topics/orders/messages/tail?text=followed")
        browser.until(lambda: browser.run("return document.readyState") == "complete", "the page")

        def arrived() -> bool:
            with Producer(self._bootstrap) as producer:
                producer.send("orders", b'{"followed": true, "customer": {"card": "4111"}}')
            return "followed" in browser.run("return document.querySelector('.messages tbody').innerText")

        browser.until(arrived, "a message")
        shown = browser.run("return document.querySelector('.messages tbody').innerText")
        assert "4111" not in shown and "***" in shown

    def search(self) -> None:
        """Find messages by a field; what is masked can't be searched for."""
        browser = self._browser
        browser.open("/c/main/topics/orders/messages?from=oldest&field=customer.name%3Dc3&count=5")
        assert "5 shown" in browser.text() and "4111" not in browser.text()
        browser.open("/c/main/topics/orders/messages?from=oldest&text=4111-0001")
        assert "0 shown" in browser.text()

    def act(self) -> None:
        """Create a topic, produce to it, and delete it: plan, confirm, outcome."""
        browser = self._browser
        browser.open("/c/main/create-topic")
        browser.fill(topic="made-here", partitions="3")
        self._do("pylogd topics create made-here --partitions 3", "was created")
        browser.open("/c/main")
        self._until_page("/c/main/topics/made-here")
        browser.open("/c/main/topics/made-here/produce")
        browser.fill(key="k", value="hello")
        self._do("pylogd produce made-here --quiet --key k", "at offset 0")
        browser.open("/c/main/topics/made-here/delete")
        browser.fill(typed="made-here")
        self._do("pylogd topics delete made-here --yes", "was deleted")

    def reset(self) -> None:
        """Reset a group: the plan changes nothing, the confirmation does."""
        browser = self._browser
        self._until_state("billing", "Empty")
        browser.open("/c/main/groups/billing/reset")
        browser.fill(to="earliest")
        browser.submit()
        browser.until(lambda: "Nothing has been changed yet" in browser.text(), "the plan")
        with Admin(self._bootstrap) as admin:
            assert any(one.offset for one in admin.group_offsets("billing").values())
        browser.submit()
        browser.until(lambda: "were changed" in browser.text(), "the outcome")
        with Admin(self._bootstrap) as admin:
            assert not any(one.offset for one in admin.group_offsets("billing").values())

    def _do(self, command: str, outcome: str) -> None:
        browser = self._browser
        browser.submit()
        browser.until(lambda: command in browser.text(), "the command")
        browser.submit()
        browser.until(lambda: outcome in browser.text(), "the outcome")

    def _until_page(self, path: str) -> None:
        def there() -> bool:
            self._browser.open(path)
            return "There is no topic" not in self._browser.text()

        self._browser.until(there, path)
        self._browser.driver.get_log("browser")  # it has answers with 404

    def _until_state(self, group: str, state: str) -> None:
        def there() -> bool:
            self._browser.open(f"/c/main/groups/{group}")
            return state in self._browser.text()

        self._browser.until(there, state)


def judge_pages(browser: Browser, node: int, found: Outcome) -> None:
    """Look at each page in each size and colour."""
    for page in PAGES:
        for size in (WIDE, NARROW):
            for dark in (False, True):
                browser.look(size, dark=dark)
                browser.open("/c/main" + page.format(node=node))
                found.pages += 1
                look = f"{page or '/'} at {size[0]} pixels, {'dark' if dark else 'light'}"
                found.problems += [f"{look}: {problem}" for problem in browser.problems()]


def keep_pictures(browser: Browser, folder: Path) -> None:
    """Keep pictures for the documents."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = (
        ("overview", "", WIDE, False), ("topic", "/topics/orders", WIDE, False),
        ("group-dark", "/groups/billing", WIDE, True),
        ("messages", "/topics/orders/messages?from=oldest&count=5", WIDE, False),
        ("topics-narrow", "/topics", NARROW, False),
        ("audit", "/audit#windows", WIDE, False), ("table", "/tables/lake", WIDE, False),
        ("mirrors-narrow", "/mirrors", NARROW, True),
    )  # fmt: skip
    for name, page, size, dark in pictures:
        browser.look(size, dark=dark)
        browser.open("/c/main" + page)
        browser.keep(folder / f"{name}.png")
    browser.look(WIDE, dark=False)
    browser.open("/c/main/groups/billing/reset")
    browser.fill(to="earliest")
    browser.submit()
    browser.until(lambda: "Nothing has been changed yet" in browser.text(), "the plan")
    browser.keep(folder / "reset.png")


def use(bootstrap: str, base: str, pictures: Path | None) -> Outcome:
    """Judge the pages, and go through the flows."""
    found = Outcome()
    with Admin(bootstrap) as admin:
        node = admin.describe_cluster().brokers[0].node_id
    browser = Browser(base)
    try:
        browser.look(WIDE, dark=False)
        flows = Flows(browser, bootstrap)
        steps: Sequence[Callable[[], None]] = (
            flows.log_in, flows.by_keyboard, flows.live, flows.tail, flows.search, flows.act,
        )  # fmt: skip
        for step in steps:
            _try(step, found)
        if pictures is not None:
            keep_pictures(browser, pictures)
        judge_pages(browser, node, found)
        browser.look(WIDE, dark=False)
        _try(flows.reset, found)
    finally:
        browser.close()
    return found


def _try(step: Callable[[], None], found: Outcome) -> None:
    text = (step.__doc__ or "").rstrip(".")
    try:
        step()
        found.flows[text] = ""
    except Exception as error:  # of the driver too: the other steps go on
        found.flows[text] = f"{type(error).__name__}: {error}"


def report(found: Outcome, what: str) -> list[str]:
    """Return the page of results."""
    lines = [
        f"# The console in Chromium, on {what}", "", "Written by `make console` and `make console-kafka`.", "",
        circumstances(), "",
        f"* Pages judged by axe (WCAG 2.2 A and AA, best practices), each at 1280 and 360 pixels, light and dark: "
        f"{found.pages}; problems: {len(found.problems)}.", "",
        "| what an operator does | |", "| --- | --- |",
        *(f"| {text} | {problem[:200] or 'works'} |" for text, problem in found.flows.items()),
    ]  # fmt: skip
    return lines + ([""] + [f"* {one}" for one in found.problems] if found.problems else [])


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="use Apache Kafka from Maven Central")
    parser.add_argument("--results", type=Path, help="write this page")
    parser.add_argument("--pictures", type=Path, help="keep pictures in this folder")
    options = parser.parse_args()
    broker, what = (kafka_broker, "Apache Kafka") if options.kafka else (pylogd_broker, "pylogd")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with broker(folder) as bootstrap:
            fill(bootstrap)
            with served() as url, console_of(bootstrap, folder, url) as base:
                found = use(bootstrap, base, options.pictures)
            log = (folder / "console.log").read_text()
    if "#critical" in log:
        found.problems.append("the console's log has unexpected errors:\n" + log[log.index("#critical") :][:3000])
    lines = report(found, what)
    print("\n".join(lines))
    if options.results is not None:
        write_page(options.results, lines)
    return 1 if found.problems or any(found.flows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
