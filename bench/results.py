"""The results of `make bench`, saved after each sample, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.experiments import Experiment, canonical


@dataclass(slots=True)
class Measurement:
    """The samples of one experiment with one peer, or why there are none. `commit` is pylogd's at the time."""

    samples: list[dict[str, float]] = field(default_factory=list)
    why_not: str = ""
    final: bool = False
    commit: str = ""

    def median(self, metric: str) -> float | None:
        """Return the median over the rounds, None if the metric was not measured."""
        found = self.values(metric)
        return statistics.median(found) if found else None

    def values(self, metric: str) -> list[float]:
        """Return the values of the rounds that have the metric."""
        return [sample[metric] for sample in self.samples if metric in sample]


@dataclass(slots=True)
class Results:
    """All measurements by experiment (its group and name) and peer, and facts about the peers."""

    path: Path
    about: dict[str, object] = field(default_factory=dict)
    peers: dict[str, dict[str, str]] = field(default_factory=dict)
    found: dict[str, dict[str, Measurement]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Return the results of earlier runs, empty if there are none."""
        if not path.exists():
            return cls(path)
        said = json.loads(path.read_text())
        found = {
            row: {peer: Measurement(**one) for peer, one in columns.items()} for row, columns in said["found"].items()
        }
        return cls(path, said["about"], said["peers"], found)

    def save(self) -> None:
        """Write all results, replacing the file in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        found = {row: {peer: asdict(one) for peer, one in columns.items()} for row, columns in self.found.items()}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"about": self.about, "peers": self.peers, "found": found}, indent=1) + "\n")
        partial.replace(self.path)

    def get(self, experiment: Experiment, peer: str) -> Measurement | None:
        """Return a measurement, None if it was not made."""
        return self.found.get(key(experiment), {}).get(peer)

    def put(self, experiment: Experiment, peer: str, measurement: Measurement) -> None:
        """Keep a measurement and save all."""
        self.found.setdefault(key(experiment), {})[peer] = measurement
        self.save()


def key(experiment: Experiment) -> str:
    """Return an experiment's name in the file. Experiments that measure the same share a name."""
    found = canonical(experiment)
    return f"{found.group}: {found.name}"
