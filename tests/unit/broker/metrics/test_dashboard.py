"""The Grafana dashboard: current, and of metrics that there are."""

from __future__ import annotations

import json
import re
from types import ModuleType

import pytest

from pylogd.broker.metrics.table import DEFINITIONS, Kind
from tests.alerts.published import queries, selectors
from tests.tools import tool

pytest.importorskip("grafana_foundation_sdk")

#: Of Prometheus's client library, for the process.
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return tool("generate_dashboard")


def test_the_file_is_current(generator: ModuleType) -> None:
    assert generator.FILE.read_text(encoding="utf-8") == generator.text(), "run tools/generate_dashboard.py"


def test_variables_have_values_before_anybody_chooses(generator: ModuleType) -> None:
    """Grafana shows an error and no panel if it finds no value, or two variables with the same id."""
    variables = json.loads(generator.text())["templating"]["list"]
    assert [one["id"] for one in variables] == [one["name"] for one in variables]
    values = {one["name"]: one["current"]["value"] for one in variables}
    assert values == {"datasource": "default", "instance": ["$__all"]}


def test_panels_have_numbers_and_places_of_their_own(generator: ModuleType) -> None:
    panels = json.loads(generator.text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


def test_every_metric_is_there_with_its_labels_and_nearly_all_are_shown(generator: ModuleType) -> None:
    names = {one.sample_name: one for one in DEFINITIONS.values()}
    for one in DEFINITIONS.values():
        if one.kind is Kind.HISTOGRAM:
            names.update({one.name + suffix: one for suffix in ("_bucket", "_sum", "_count")})
    shown = set()
    for expression in generator.expressions():
        found = set(re.findall(r"\b(?:pylogd|kafka|process)_\w+", expression))
        assert found and found <= names.keys() | PROCESS, expression
        labels = {label for name in found & names.keys() for label in names[name].labels} | {"instance", "le", "metric"}
        asked = {label for by in re.findall(r" by \(([^)]*)\)", expression) for label in by.split(", ")}
        assert asked <= labels, expression
        shown |= {names[name].name for name in found & names.keys()}
    elsewhere = {name for query in queries() for name, _ in selectors(query.expression)}
    shown |= {names[name].name for name in elsewhere & names.keys()}
    assert len(shown) > len(DEFINITIONS) * 0.7


def test_legends_name_labels_that_the_query_keeps(generator: ModuleType) -> None:
    for panels in generator.ROWS.values():
        for panel in panels:
            for expression, legend in panel.queries:
                kept = {label for by in re.findall(r" by \(([^)]*)\)", expression) for label in by.split(", ")}
                wanted = set(re.findall(r"{{(\w+)}}", legend))
                assert not kept or wanted <= kept, panel.title
