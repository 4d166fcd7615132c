"""The results of bench/smoke.py, and bench/SMOKE.md written from them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

IDLE_MB = 80
FIRST_ACCEPT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Workload:
    """One row that both brokers run. `cpu_at_most` bounds pylogd's processor time over the ceiling's."""

    name: str
    verb: str
    count: int
    size: int
    at_least: float
    settings: tuple[str, ...] = ()
    cpu_at_most: float | None = None


@dataclass(slots=True)
class Sample:
    """One round: messages a second, MB of values a second, the broker's processor seconds for a million messages."""

    rate: float
    megabytes: float
    cpu: float


@dataclass(slots=True)
class Results:
    """All results, as smoke.json has them."""

    workloads: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    flat: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    start: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[str, dict[str, float]] = field(default_factory=dict)
    storage: dict[str, dict[str, float]] = field(default_factory=dict)
    librdkafka: str = ""


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def _workloads(workloads: Sequence[Workload], results: Results) -> list[str]:
    lines = [
        _row("what", "ceiling msg/s", "pylogd msg/s", "ratio", "target", "", "ceiling CPU", "pylogd CPU", "ratio"),
        _row("---", "--:", "--:", "--:", "--:", "---", "--:", "--:", "--:"),
    ]
    for work in workloads:
        found = results.workloads.get(work.name, {})
        if set(found) != {"ceiling", "pylogd"}:
            lines += [
                _row(work.name, *(f"{name}: {sample.rate:,.0f} msg/s, {sample.cpu:.2f} CPU" for sample in samples))
                for name, samples in found.items()
            ]
            continue
        rate = {name: statistics.median(sample.rate for sample in samples) for name, samples in found.items()}
        cpu = {name: statistics.median(sample.cpu for sample in samples) for name, samples in found.items()}
        ratio = rate["pylogd"] / rate["ceiling"]
        cpu_ratio = cpu["pylogd"] / cpu["ceiling"] if cpu["ceiling"] else float("nan")
        met = ratio >= work.at_least and (work.cpu_at_most is None or cpu_ratio <= work.cpu_at_most)
        target = f"≥ {work.at_least:.2f}" + (f", CPU ≤ {work.cpu_at_most}" if work.cpu_at_most else "")
        lines.append(
            _row(
                work.name,
                f"{rate['ceiling']:,.0f}",
                f"{rate['pylogd']:,.0f}",
                f"{ratio:.2f}",
                target,
                _verdict(met),
                f"{cpu['ceiling']:.2f}",
                f"{cpu['pylogd']:.2f}",
                f"{cpu_ratio:.2f}",
            )
        )
    return lines


def _flat(results: Results) -> list[str]:
    lines = [_row("CPU microseconds a request", "with 1", "with 1,000", "ratio"), _row("---", "--:", "--:", "--:")]
    for row, found in results.flat.items():
        one, many = (statistics.median(found[column]) for column in ("1", "1,000"))
        lines.append(_row(row, f"{one:.1f}", f"{many:.1f}", f"{many / one:.2f}"))
    return lines


def _start(results: Results) -> list[str]:
    lines = [_row("start and memory", "found", "target", ""), _row("---", "--:", "--:", "---")]
    for name, seconds in results.start.items():
        median = statistics.median(seconds)
        own = name == "pylogd"
        target = f"≤ {FIRST_ACCEPT_SECONDS:.0f} s" if own else ""
        verdict = _verdict(median <= FIRST_ACCEPT_SECONDS) if own else ""
        lines.append(_row(f"{name}: start to first accept, empty directory", f"{median:.2f} s", target, verdict))
    for name, size in results.memory.get("idle", {}).items():
        own = name == "pylogd"
        target, verdict = (f"≤ {IDLE_MB} MB", _verdict(size <= IDLE_MB * 1e6)) if own else ("", "")
        lines.append(_row(f"{name}: resident, idle", f"{size / 1e6:.1f} MB", target, verdict))
    for row, found in results.memory.items():
        if "highest" in found:
            change = f"{found['before'] / 1e6:.1f} → {found['highest'] / 1e6:.1f} MB"
            lines.append(_row(f"pylogd: highest resident, {row}", change, "bounded", ""))
    return lines


def _storage(results: Results) -> list[str]:
    if not results.storage:
        return []
    lines = [_row("bytes on the disk beyond each message's 200", "log", "indexes"), _row("---", "--:", "--:")]
    for row, found in results.storage.items():
        lines.append(_row(row, f"{found['log']:.2f}", f"{found['indexes']:.2f}"))
    return lines


def tables(
    workloads: Sequence[Workload], results: Results, machine: dict[str, object], quick: bool, repeats: int
) -> str:
    """Return the text of SMOKE.md."""
    rounds = "**Quick: one round of a tenth of the size.** " if quick else f"Median of {repeats} rounds, taking turns. "
    lines = [
        "# pylogd beside the bare ceiling",
        "",
        "Written by `make bench-smoke` (`bench/smoke.py`; every round is in `smoke.json`). The ceiling is "
        "`bench/ceiling_broker.py`: the least that a Twisted process has to do to serve a Kafka client. "
        "200-byte messages unless a row says otherwise, one partition, one connection; "
        "the client is `bench/client.c` on librdkafka, and shares the machine's cores with the broker. " + rounds,
        "",
        "CPU: the broker's own processor seconds for a million messages.",
        "",
        *_workloads(workloads, results),
        "",
        *_flat(results),
        "",
        *_start(results),
        "",
        *_storage(results),
        "",
        "Measured on: " + ", ".join(f"{name} {value}" for name, value in machine.items()) + ".",
        "",
    ]
    return "\n".join(lines)
