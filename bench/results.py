"""What has been measured, kept on disk after each sample, so that a run that was ended goes on where it was."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.experiments import Experiment, canonical


@dataclass(slots=True)
class Measurement:
    """One experiment with one peer: its samples, or why there are none. `commit` is pylogd's when it was measured."""

    samples: list[dict[str, float]] = field(default_factory=list)
    why_not: str = ""
    final: bool = False
    commit: str = ""

    def median(self, metric: str) -> float | None:
        """The median over the rounds, or None where it was not measured."""
        found = self.values(metric)
        return statistics.median(found) if found else None

    def values(self, metric: str) -> list[float]:
        """What each round that has the metric found."""
        return [sample[metric] for sample in self.samples if metric in sample]


@dataclass(slots=True)
class Results:
    """All measurements by experiment (its group and name) and peer, and about the peers."""

    path: Path
    about: dict[str, object] = field(default_factory=dict)
    peers: dict[str, dict[str, str]] = field(default_factory=dict)
    found: dict[str, dict[str, Measurement]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Results:
        """What an earlier run left, if anything."""
        if not path.exists():
            return cls(path)
        said = json.loads(path.read_text())
        found = {
            row: {peer: Measurement(**one) for peer, one in columns.items()} for row, columns in said["found"].items()
        }
        return cls(path, said["about"], said["peers"], found)

    def save(self) -> None:
        """Write all of it, in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        found = {row: {peer: asdict(one) for peer, one in columns.items()} for row, columns in self.found.items()}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"about": self.about, "peers": self.peers, "found": found}, indent=1) + "\n")
        partial.replace(self.path)

    def get(self, experiment: Experiment, peer: str) -> Measurement | None:
        """What was found, if it was asked for."""
        return self.found.get(key(experiment), {}).get(peer)

    def put(self, experiment: Experiment, peer: str, measurement: Measurement) -> None:
        """Remember and save."""
        self.found.setdefault(key(experiment), {})[peer] = measurement
        self.save()


def key(experiment: Experiment) -> str:
    """An experiment's name in the file: those that do the same share what was measured."""
    found = canonical(experiment)
    return f"{found.group}: {found.name}"
