"""A real Prometheus with the alert rules of etc/, whose times are shortened, and what it says of the alerts."""

from __future__ import annotations

import calendar
import http.client
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pylogd.base.ports import free_ports
from tests.conftest import CHECKOUT

#: How much shorter than in the file alerts wait (`for`).
FASTER: Final = 30
_SECONDS: Final = 60.0


class Rules(NamedTuple):
    """Alert rules. file: their path. about: what they watch here, for people.

    changed: what else than `for` is changed, so that minutes become seconds: the text in the file, what takes its
    place, and how many seconds earlier that makes an expression true.
    """

    file: Path
    about: str
    changed: tuple[tuple[str, str, int], ...]


BROKERS: Final = Rules(
    CHECKOUT / "etc" / "broker-alerts.yml",
    "Three brokers on ZooKeeper",
    (("[5m]", "[20s]", 0), ("> 600", "> 15", 585)),
)
MIRROR: Final = Rules(
    CHECKOUT / "etc" / "mirror-alerts.yml",
    "Two processes of `pylogd mirror run` on ZooKeeper, which copy a topic from one broker to another,",
    (("> 300", "> 10", 290), ("[1h]", "[20s]", 0)),
)
AUDIT: Final = Rules(
    CHECKOUT / "etc" / "audit-alerts.yml",
    "`pylogd audit serve`, an audited producer, and a mirror from one broker to another, which is the stage `copy`,",
    (("> 3600", "> 30", 3570), ("> 300", "> 10", 290), ("[1h]", "[1m]", 0)),
)


class Alert(NamedTuple):
    """An alert that is pending or fires. active_at: since when its expression is true, in seconds since 1970."""

    name: str
    firing: bool
    active_at: float
    summary: str


def waits(rules: Rules) -> dict[str, int]:
    """Return how many seconds later each alert of the file fires than its shortened expression becomes true."""
    found = {}
    for block in rules.file.read_text(encoding="utf-8").split("- alert: ")[1:]:
        minutes = re.search(r"\n\s+for: (\d+)m\n", block)
        later = sum(seconds for old, _, seconds in rules.changed if old in block)
        found[block.split("\n", 1)[0]] = later + (60 * int(minutes[1]) if minutes else 0)
    return found


def shortened(rules: Rules) -> str:
    """Return the rules with shorter times."""
    text = re.sub(r"for: (\d+)m", lambda found: f"for: {60 * int(found[1]) // FASTER}s", rules.file.read_text("utf-8"))
    for old, new, _ in rules.changed:
        assert old in text, old
        text = text.replace(old, new)
    return text


def program() -> str:
    """Return the path of Prometheus. Raises FileNotFoundError."""
    path = f"{os.environ['PATH']}:{CHECKOUT / '.cache' / 'promtool' / 'usr' / 'bin'}"
    found = shutil.which("prometheus", path=path)
    if found is None:
        raise FileNotFoundError("Prometheus is not installed: sh tools/find-promtool.sh downloads it")
    return found


class Prometheus:
    """A server that scrapes every second. A context manager."""

    def __init__(
        self, folder: Path, ports: Mapping[str, int], rules: Rules = BROKERS,
        relabelling: Sequence[Mapping[str, Any]] = (),
    ) -> None:  # fmt: skip
        """ports: of the metrics of each process, by its name. relabelling: of metrics, as Prometheus is configured."""
        self._folder = folder
        self._port = free_ports(1)[0]
        folder.mkdir()
        every = {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"}
        targets = [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}} for name, port in ports.items()]
        scrapes = [{"job_name": "pylogd", "static_configs": targets, "metric_relabel_configs": [*relabelling]}]
        (folder / "rules.yml").write_text(shortened(rules), encoding="utf-8")
        config = {"global": every, "rule_files": ["rules.yml"], "scrape_configs": scrapes}
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")

    def __enter__(self) -> Prometheus:
        command = [
            program(), f"--config.file={self._folder / 'prometheus.yml'}",
            f"--web.listen-address=127.0.0.1:{self._port}", "--log.level=warn",
            f"--storage.tsdb.path={self._folder / 'data'}",
        ]  # fmt: skip
        self._log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                self.get("/-/ready")
            except (OSError, AssertionError):
                assert self._process.poll() is None and time.monotonic() < deadline, (self._folder / "log").read_text()
                time.sleep(0.1)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(_SECONDS)
        self._log.close()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._port}"

    def get(self, path: str) -> bytes:
        """Return the answer to a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_SECONDS)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body
            return body
        finally:
            connection.close()

    def wait_for_targets(self) -> None:
        """Wait until all processes were scraped: Prometheus begins some seconds after it is ready."""
        deadline = time.monotonic() + _SECONDS
        while True:
            found: list[Any] = json.loads(self.get("/api/v1/targets?state=active"))["data"]["activeTargets"]
            if found and all(one["health"] == "up" for one in found):
                return
            assert time.monotonic() < deadline, found
            time.sleep(0.1)

    def alerts(self) -> list[Alert]:
        """Return the alerts that are pending or fire."""
        found: list[Any] = json.loads(self.get("/api/v1/alerts"))["data"]["alerts"]
        return [
            Alert(
                one["labels"]["alertname"], one["state"] == "firing", _seconds(one["activeAt"]),
                re.sub(r"/\S*/(broker\d)", r"\1", one["annotations"]["summary"]),
            )
            for one in found
        ]  # fmt: skip


def _seconds(stamp: str) -> float:
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{fraction or 0}")
