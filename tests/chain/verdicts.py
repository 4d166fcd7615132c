"""Compare the audit's verdicts with the truth, as its commands print them: by window, by period, and for all stages."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Final

from pylogd.services.audit.markers import period_name, window_name
from tests.chain.journals import Window
from tests.commands import run_command
from tests.kills.comparing import LakeFault

STAGES: Final = ("serving", "mirror", "lake")
_WAIT_SECONDS: Final = 180
_STATUS: Final = {0: "complete", 1: "incomplete"}


class Verdicts:
    """What the audit says about the topic of a run. bootstrap: the serving cluster."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic

    def _run(self, *arguments: str) -> tuple[int, str]:
        done = run_command("audit", *arguments, "-b", self._bootstrap, PYLOGD_OUTPUT="tsv")
        return done.returncode, f"{done.stdout}\n{done.stderr}"

    def check_periods(self, truth: Mapping[int, Window], period_ms: int) -> Counter[str]:
        """Wait for the verdict on each period, for all stages together. Return how often each verdict was given.

        Raises LakeFault if it is not the truth.
        """
        periods: defaultdict[int, set[str]] = defaultdict(lambda: {"complete"})
        for start, window in truth.items():
            begin = start - start % period_ms
            found = window.verdicts()
            if found == {"incomplete"} or periods[begin] == {"complete"}:
                periods[begin] = found
            elif periods[begin] != {"incomplete"}:
                periods[begin] |= found
        stages = [part for stage in STAGES for part in ("--stage", stage)]
        given: Counter[str] = Counter()
        for begin, right in sorted(periods.items()):
            status, said = self._run(
                "wait", self._topic, period_name(begin), *stages, "--timeout", str(_WAIT_SECONDS),
                "--markers", f"{self._topic}-complete",
            )  # fmt: skip
            verdict = _STATUS.get(status, "unknown")
            given[verdict] += 1
            if verdict not in right:
                raise LakeFault(f"`audit wait` says {verdict}, the truth is {right}:\n{said}")
        return given

    def check_windows(self, truth: Mapping[int, Window]) -> Counter[str]:
        """Compare counts and verdict of each window at each stage. Return how often each verdict was given."""
        _, said = self._run(
            "report", self._topic, "--all", "--json", "--since", "24h", "--state", f"{self._topic}-state"
        )
        rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        by_window = {(row["stage"], row["window"]): row for row in rows}
        given: Counter[str] = Counter()
        lost: Counter[str] = Counter()
        for start, window in truth.items():
            for stage in STAGES:
                row = by_window.pop((stage, f"{window_name(start)}Z"), None)
                if row is None:
                    if window.received:
                        raise LakeFault(f"the audit has no window {window_name(start)} at {stage}, of {window}")
                    continue
                _check_row(row, window)
                given[row["verdict"]] += 1
                lost[stage] += row["lost"]
        for row in by_window.values():
            if row["received"] or row["verdict"] not in ("complete", "pending"):  # the latest may not be judged yet
                raise LakeFault(f"nothing was sent in this window: {row}")
        most = sum(window.lost for window in truth.values())
        least = most - sum(window.unsure for window in truth.values())
        if not all(least <= lost[stage] <= most for stage in STAGES):
            raise LakeFault(f"the audit says that {lost} were lost, between {least} and {most} were")
        return given


def _check_row(row: Mapping[str, Any], window: Window) -> None:
    none = ("missing", "duplicates", "unreported", "unstamped", "pending")
    if row["received"] != window.received or any(row[name] for name in none):
        raise LakeFault(f"the audit says {row}, the truth is {window}")
    if row["reported"] + row["recovered"] != window.received or row["verdict"] not in window.verdicts():
        raise LakeFault(f"the audit says {row}, the truth is {window}")
