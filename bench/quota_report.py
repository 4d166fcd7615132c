"""Keep what `bench.quotas` measured, and write the page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka

from bench.cluster import Figure
from bench.machine import machine
from bench.quota_clients import VALUE_BYTES


@dataclass(slots=True)
class Results:
    """The measured rows by name, each with its commit and the machine's load. order: that of all rows."""

    path: Path
    order: Sequence[str]
    machine: dict[str, object] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, order: Sequence[str]) -> Results:
        """Return the results of earlier runs."""
        said = json.loads(path.read_text()) if path.exists() else {"machine": {}, "rows": {}}
        return cls(path, order, said["machine"], said["rows"])

    def put(self, row: str, figures: Iterable[Figure], how: Mapping[str, object]) -> None:
        """Keep a row, in memory and on disk."""
        self.machine = machine(str(confluent_kafka.libversion()[0]))
        commit = self.machine.pop("commit")
        self.rows[row] = {"commit": commit, **how, "figures": [asdict(figure) for figure in figures]}
        ordered = {name: self.rows[name] for name in self.order if name in self.rows}
        self.path.write_text(json.dumps({"machine": self.machine, "rows": ordered}, indent=1) + "\n")


def table(results: Results, explained: Mapping[str, str]) -> str:
    """Return the text of QUOTAS.md. explained: what each row is, by its name."""
    lines = [
        "# Quotas",
        "",
        "Written by `make bench-quotas` (`bench/quotas.py`). Brokers and clients share the machine. The clients are "
        f"unmodified librdkafka (`bench/quota_clients.py`); values have {VALUE_BYTES:,} bytes and are not compressed. "
        "Byte rates are those of the values from the first request on, so a rate of exactly the quota is 0.998 of it "
        "here. A quota holds on each broker by itself, as with Kafka: a client of three brokers has it three times.",
    ]
    for row, explanation in explained.items():
        lines += ["", f"## {row}", "", explanation, ""]
        kept = results.rows.get(row)
        if kept is None:
            lines.append("Not measured yet.")
            continue
        lines += ["| what | median | unit | range | target | |", "| --- | --: | --- | --- | --- | --- |"]
        lines += [_line(Figure(**one)) for one in kept["figures"]]
        lines += [
            "",
            f"Commit {kept['commit']}, {kept['seconds']} s a client, load of the machine before {kept['load']}.",
        ]
    lines += ["", "Measured on: " + ", ".join(f"{name} {value}" for name, value in results.machine.items()) + ".", ""]
    return "\n".join(lines)


def _line(figure: Figure) -> str:
    bounds = [f"≥ {figure.at_least:g}"] if figure.at_least is not None else []
    bounds += [f"≤ {figure.at_most:g}"] if figure.at_most is not None else []
    verdict = {True: "met", False: "**missed**", None: ""}[figure.met]
    low, high = min(figure.samples), max(figure.samples)
    between = f"{_number(low)} to {_number(high)}" if len(figure.samples) > 1 else ""
    return f"| {figure.name} | {_number(figure.median)} | {figure.unit} | {between} | {', '.join(bounds)} | {verdict} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"
