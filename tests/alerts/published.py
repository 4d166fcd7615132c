"""The queries of dashboards and alert rules that others have published for Kafka, and which of them find metrics.

`published.json` has their titles and expressions, with the source of each dashboard. Matchers of labels that a scrape
adds (cluster, namespace, instance, ...) are left out, and variables have the values that select everything.

docs/monitoring.md lists the names that can't be there, with the reason, and has the relabelling for dashboards that
follow Confluent's names. Both are read from the page, so that it says what is true.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.conftest import CHECKOUT

FILE: Final = Path(__file__).with_name("published.json")
PAGE: Final = CHECKOUT / "docs" / "monitoring.md"
#: What Prometheus itself knows of each target.
_OWN: Final = frozenset({"up"})
_AGGREGATION: Final = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_SELECTOR: Final = re.compile(
    r"\b(up|(?:kafka|jvm|java|process|container|kubelet|zookeeper|leader|num)_\w+)\s*(?:\{([^}]*)\})?"
)
_MATCHER: Final = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')
#: The rows of the table of names that are not there: names in the first column.
_ABSENT_ROW: Final = re.compile(r"^\| (`[^|]+`) \| [^|]+ \|$", re.MULTILINE)


class Query(NamedTuple):
    """A query. renamed: whether its dashboard needs the relabelling."""

    dashboard: str
    source: str
    renamed: bool
    title: str
    expression: str


class Sample(NamedTuple):
    """A sample's name and labels."""

    name: str
    labels: Mapping[str, str]


def queries() -> Iterator[Query]:
    """Yield all queries."""
    for one in json.loads(FILE.read_text(encoding="utf-8")):
        for title, expression in one["queries"]:
            yield Query(one["dashboard"], one["source"], one["renamed"], title, expression)


def absent_names() -> list[str]:
    """Return the names that the page lists as not there; `*` stands for any text."""
    section = PAGE.read_text(encoding="utf-8").split("### What is not there\n")[1].split("\n## ")[0]
    return [name for row in _ABSENT_ROW.findall(section) for name in re.findall(r"`([^`]+)`", row)]


def told() -> dict[tuple[str, str], tuple[int, int]]:
    """Return what the page tells of each dashboard, by its name and source: how many queries it has, and with data."""
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+: [^|]+) \| (\d+) \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {(name, source): (int(count), int(found)) for name, source, count, found in rows}


def relabelling() -> list[dict[str, Any]]:
    """Return the rules of the page that rename metrics as Confluent's dashboards have them."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    [found] = [block for block in blocks if "metric_relabel_configs" in block]
    rules: list[dict[str, Any]] = yaml.safe_load(found)["scrape_configs"][0]["metric_relabel_configs"]
    return rules


def renamed(name: str, rules: Iterable[Mapping[str, Any]]) -> str:
    """Return the name that a metric has after the rules."""
    for rule in rules:
        assert (rule["source_labels"], rule["target_label"]) == (["__name__"], "__name__")
        if found := re.fullmatch(rule["regex"], name):
            name = found.expand(rule["replacement"].replace("${1}", r"\g<1>"))
    return name


def selectors(expression: str) -> list[tuple[str, str]]:
    """Return the names in an expression, each with its matchers."""
    return [(name, matchers) for name, matchers in _SELECTOR.findall(_AGGREGATION.sub("", expression))]


def alternatives(expression: str) -> list[str]:
    """Return the parts of an expression between its outermost `or`s."""
    parts, depth, begin = [], 0, 0
    for found in re.finditer(r"[()]| or ", expression):
        if found[0] == " or ":
            if depth == 0:
                parts.append(expression[begin : found.start()])
                begin = found.end()
        else:
            depth += 1 if found[0] == "(" else -1
    return [*parts, expression[begin:]]


def lacking(expression: str, samples: Sequence[Sample]) -> list[str]:
    """Return the selectors of an expression that find nothing; none if one of its alternatives finds all of its.

    A selector whose name is there, with other labels, has its matchers.
    """
    names = {one.name for one in samples}
    lacking: list[str] = []
    for part in alternatives(expression):
        missing = [
            f"{name}{{{matchers}}}" if name in names else name
            for name, matchers in selectors(part)
            if not _finds(name, matchers, samples)
        ]
        if not missing:
            return []
        lacking += missing
    return lacking


def _finds(name: str, matchers: str, samples: Iterable[Sample]) -> bool:
    if name in _OWN:
        return True
    return any(one.name == name and _matches(matchers, one.labels) for one in samples)


def _matches(matchers: str, labels: Mapping[str, str]) -> bool:
    return all(_holds(labels.get(name, ""), kind, value) for name, kind, value in _MATCHER.findall(matchers))


def _holds(found: str, kind: str, value: str) -> bool:
    same = re.fullmatch(value, found) is not None if "~" in kind else found == value
    return same is not kind.startswith("!")


def is_explained(expression: str, listed: Sequence[str]) -> bool:
    """Return whether an expression can't have data, since each of its alternatives asks for a name that is listed."""
    return all(
        any(is_listed(name, listed) or is_listed(f"{name}{{{matchers}}}", listed) for name, matchers in selectors(part))
        for part in alternatives(expression)
    )


def compares(expression: str) -> bool:
    """Return whether an expression is a condition, which has no series as long as it does not hold."""
    return re.search(r"[<>]|[!=]= |\babsent\(", re.sub(r"\{[^}]*\}", "", expression)) is not None


def is_listed(name: str, listed: Iterable[str]) -> bool:
    """Return whether the page says that a name is not there."""
    return any(fnmatchcase(name, pattern) for pattern in listed)
