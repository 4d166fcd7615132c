"""The results beside peers: one file for each group of rows, replaced in one step when the group is done."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.experiments import Experiment
from tests.pages import json_text


@dataclass(slots=True)
class Measurement:
    """The rounds of one row with one peer, or why there are none."""

    samples: list[dict[str, float]] = field(default_factory=list)
    why_not: str = ""

    def median(self, metric: str) -> float | None:
        """Return the median over the rounds, None if the metric was not measured."""
        found = self.values(metric)
        return statistics.median(found) if found else None

    def values(self, metric: str) -> list[float]:
        """Return the values of the rounds that have the metric."""
        return [sample[metric] for sample in self.samples if metric in sample]


@dataclass(slots=True)
class GroupResults:
    """The results of one group. measured: when it was done (UTC), after so many minutes. about: the machine, pylogd's
    commit. peers: each one's version, command and client. rows: measurements by row and peer.
    """

    name: str
    measured: str
    about: dict[str, object] = field(default_factory=dict)
    peers: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: dict[str, dict[str, Measurement]] = field(default_factory=dict)
    minutes: float = 0.0


@dataclass(slots=True)
class Results:
    """All groups that have been measured, by name. folder: where their files are."""

    folder: Path
    groups: dict[str, GroupResults] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Results:
        """Return the results of earlier runs, empty if there are none."""
        found = cls(folder)
        for path in sorted(folder.glob("*.json")):
            said = json.loads(path.read_text())
            said["rows"] = {
                row: {peer: Measurement(**one) for peer, one in columns.items()}
                for row, columns in said["rows"].items()
            }
            found.groups[said["name"]] = GroupResults(**said)
        return found

    def save(self, group: GroupResults) -> None:
        """Keep a group, and write its file, replacing that of an earlier run in one step."""
        self.groups[group.name] = group
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{slug(group.name)}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json_text(asdict(group)))
        partial.replace(path)

    def get(self, experiment: Experiment, peer: str) -> Measurement | None:
        """Return a measurement, None if it was not made."""
        group = self.groups.get(experiment.group)
        return None if group is None else group.rows.get(experiment.name, {}).get(peer)

    def measured_at(self, group: str) -> str:
        """Return when a group was measured, as text that sorts by time; "" if it was not."""
        return self.groups[group].measured if group in self.groups else ""


def slug(name: str) -> str:
    """Return a name for files."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
