"""What a process of a mirror tells Prometheus, and the alerts on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pylogd.services.mirror.copying import Copier
from pylogd.services.mirror.feeds import RouteFigures
from pylogd.services.mirror.metrics import MirrorMetrics

CHECKOUT = Path(__file__).resolve().parents[4]


class FakeCopier(Copier):
    """A copier with these figures."""

    def __init__(self, routes: dict[str, RouteFigures]) -> None:
        self._found = routes
        self.commits, self.interruptions = 7, 2

    def figures(self) -> dict[str, RouteFigures]:
        return self._found


@dataclass
class Service:
    copiers: Mapping[str, Copier]
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    is_controller: bool = False
    file_error: str = ""


def lines(**service: Any) -> set[str]:
    return set(MirrorMetrics(Service(**service)).text().decode().splitlines())


def test_a_route_has_its_lag_its_totals_and_its_partitions_by_state() -> None:
    figures = RouteFigures(
        partitions=5, starting=3, set_aside=2, measured=4, lag=70, lag_max=60, lag_seconds=12.5, bytes=1000, records=10,
        lost_records=4, throttled_seconds=1.5,
    )  # fmt: skip
    found = lines(copiers={"b": FakeCopier({"a-b": figures})})
    assert found >= {
        'pylogd_mirror_partitions{route="a-b",state="copied"} 5.0',
        'pylogd_mirror_partitions{route="a-b",state="starting"} 1.0',
        'pylogd_mirror_partitions{route="a-b",state="set_aside"} 2.0',
        'pylogd_mirror_lag_records{route="a-b"} 70.0',
        'pylogd_mirror_lag_records_max{route="a-b"} 60.0',
        'pylogd_mirror_lag_seconds{route="a-b"} 12.5',
        'pylogd_mirror_copied_bytes_total{route="a-b"} 1000.0',
        'pylogd_mirror_copied_records_total{route="a-b"} 10.0',
        'pylogd_mirror_lost_records_total{route="a-b"} 4.0',
        'pylogd_mirror_throttled_seconds_total{route="a-b"} 1.5',
        'pylogd_mirror_commits_total{target="b"} 7.0',
        'pylogd_mirror_interruptions_total{target="b"} 2.0',
        "pylogd_mirror_is_controller 0.0",
        "pylogd_mirror_file_is_valid 1.0",
    }


def test_a_lag_that_is_not_known_has_no_value() -> None:
    found = lines(copiers={"b": FakeCopier({"a-b": RouteFigures(partitions=1, starting=3)})})
    assert 'pylogd_mirror_copied_records_total{route="a-b"} 0.0' in found
    assert [line for line in found if line.startswith("pylogd_mirror_lag")] == []


def test_a_controller_tells_what_it_refuses_and_a_file_that_it_can_not_use() -> None:
    found = lines(copiers={}, refused={"a-b": {"loop": "it comes from b"}}, is_controller=True, file_error="not TOML")
    assert found >= {
        'pylogd_mirror_refused_topics{route="a-b"} 1.0',
        "pylogd_mirror_is_controller 1.0",
        "pylogd_mirror_file_is_valid 0.0",
    }


def test_alert_rules_are_about_metrics_that_there_are() -> None:
    service = Service({"b": FakeCopier({"a-b": RouteFigures(measured=1)})}, {"a-b": {}})
    text = MirrorMetrics(service).text().decode()
    known = set(re.findall(r"^(pylogd_mirror_\w+)", text, re.MULTILINE))
    rules = (CHECKOUT / "etc" / "mirror-alerts.yml").read_text()
    used = set(re.findall(r"pylogd_mirror_\w+", rules))
    assert used and used <= known, used - known
