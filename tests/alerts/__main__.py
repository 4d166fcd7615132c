"""Fail real processes under a real Prometheus: `python -m tests.alerts [--results FILE] [--of NAME] [--only PATTERN]`.

Before each fault no alert may be pending, and after it all alerts have to be gone again. A fault has to fire the alerts
that it is for; others may fire only if they are true as well. `drill.py` has the faults of brokers, `mirror_drill.py`
those of a mirror, `audit_drill.py` those of the audit.

Exit status: 0 if all is so, 1 if something is not.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

from tests.alerts.audit_drill import audit
from tests.alerts.drill import FILLED, brokers
from tests.alerts.mirror_drill import mirror
from tests.alerts.prometheus import AUDIT, BROKERS, FASTER, MIRROR, Prometheus, Rules, waits
from tests.alerts.scene import Fault, Scene
from tests.pages import circumstances, json_text, write_page

#: What runs, by the name for `--of`.
SCENES: Final[Mapping[str, Callable[[Path], AbstractContextManager[Scene]]]] = {
    "brokers": brokers,
    "mirror": mirror,
    "audit": audit,
}
ALL_RULES: Final = (BROKERS, MIRROR, AUDIT)
_FIRE_SECONDS: Final = 180.0
_CALM_SECONDS: Final = 240.0
#: How long other alerts may show up, after those that are expected have fired.
_LONGER_SECONDS: Final = 10.0


class Seen(NamedTuple):
    """An alert that fired. seconds: from the fault until its expression was true, and until it fired here.

    lasting: whether it still fired at the end. Others have passed by themselves, as an election does.
    """

    name: str
    seconds: float
    fired: float
    summary: str
    lasting: bool = True


class Outcome(NamedTuple):
    """What became of a fault. expected: what had to fire. wrong: what went wrong.

    calm: seconds from the fault's end until no alert was left. circumstances: of the run.
    """

    about: str
    expected: list[str]
    seen: list[Seen]
    calm: float
    wrong: list[str]
    circumstances: str


def until_calm(prometheus: Prometheus) -> float:
    """Return after how many seconds there was no alert, for two seconds in a row. Raises TimeoutError."""
    begun = quiet = time.monotonic()
    while True:
        now, alerts = time.monotonic(), prometheus.alerts()
        if alerts:
            quiet = now
        elif now - quiet > 2:
            return quiet - begun
        if now - begun > _CALM_SECONDS:
            raise TimeoutError(f"alerts do not end: {alerts}")
        time.sleep(0.2)


def watch(prometheus: Prometheus, fault: Fault) -> list[Seen]:
    """Begin a fault, and return the alerts that fire."""
    seen: dict[str, Seen] = {}
    wall, begun = time.time(), time.monotonic()
    fault.begin()
    complete, last = 0.0, frozenset[str]()
    while time.monotonic() < begun + _FIRE_SECONDS:
        now, alerts = time.monotonic(), prometheus.alerts()
        last = frozenset(alert.name for alert in alerts)
        for alert in alerts:
            if alert.firing and alert.name not in seen:
                seen[alert.name] = Seen(alert.name, max(alert.active_at - wall, 0.0), now - begun, alert.summary)
        if not complete and fault.expected <= seen.keys():
            complete = now
        if complete and now > complete + _LONGER_SECONDS:
            break
        time.sleep(0.2)
    found = (one._replace(lasting=one.name in last) for one in seen.values())
    return sorted(found, key=lambda one: one.fired)


def carry_out(prometheus: Prometheus, fault: Fault) -> Outcome:
    """Let a fault happen and pass."""
    seen = watch(prometheus, fault)
    fault.end()
    names = {one.name for one in seen}
    wrong = [f"{fault.about}: {name} did not fire" for name in sorted(fault.expected - names)]
    wrong += [f"{fault.about}: {name} fired" for name in sorted(names - fault.expected - fault.allowed)]
    try:
        calm = until_calm(prometheus)
    except TimeoutError as error:
        calm, wrong = _CALM_SECONDS, [*wrong, f"{fault.about}: {error}"]
    return Outcome(fault.about, sorted(fault.expected), seen, calm, wrong, circumstances())


def _of(rules: Rules, outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes of faults that are there for alerts of these rules."""
    alerts = waits(rules).keys()
    return [one for one in outcomes if alerts >= set(one.expected)]


def keep(file: Path, outcome: Outcome, scene: Scene) -> list[Outcome]:
    """Write an outcome to a file, beside those of earlier faults; return all, in order."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    found = {
        about: Outcome(about, expected, [Seen(*one) for one in seen], calm, wrong, of_run)
        for about, expected, seen, calm, wrong, of_run in kept
    }
    found[outcome.about] = outcome
    current = [found[fault.about] for fault in scene.faults if fault.about in found]
    ordered = [one for rules in ALL_RULES for one in (current if rules is scene.rules else _of(rules, found.values()))]
    file.write_text(json_text(ordered), encoding="utf-8")
    return ordered


def page(outcomes: list[Outcome]) -> list[str]:
    """Return the lines of the page."""
    lines = [
        "# Faults and the alerts that they fire",
        "",
        "Written by `make alerts`, apart from the notes at its end. Real processes fail in turn under a real "
        "Prometheus with the rules of etc/, which scrapes and evaluates each second. To be quick, `for` is "
        f"{FASTER} times shorter in this run, and so are some ranges and thresholds; the fourth column adds to the "
        "third what the file's `for` and threshold are longer. Between two faults all alerts end.",
        "",
        "In bold: what the fault has to fire. The others are true as well. What passes was true for some seconds only, "
        "such as while leaders were elected: it fired because `for` or a threshold is shorter here.",
        "",
    ]
    for rules in ALL_RULES:
        found = _of(rules, outcomes)
        if found:
            lines += _section(rules, found)
    wrong = [text for outcome in outcomes for text in outcome.wrong]
    return [*lines, *(["What went wrong:", "", *(f"- {text}" for text in wrong)] if wrong else [])]


def _section(rules: Rules, outcomes: list[Outcome]) -> list[str]:
    takes = waits(rules)
    changes = ", ".join(f"`{old}` is `{new}`" for old, new, _ in rules.changed)
    lines = [
        f"## etc/{rules.file.name}",
        "",
        f"{rules.about} fail. In the rules {changes}.",
        "",
        outcomes[-1].circumstances,
        "",
        "| fault | alert | condition true after, s | fires after, s | summary |",
        "| --- | --- | --: | --: | --- |",
    ]
    for outcome in outcomes:
        for number, one in enumerate(outcome.seen):
            about = outcome.about if number == 0 else ""
            name = f"**{one.name}**" if one.name in outcome.expected else one.name
            fires = f"{one.seconds + takes[one.name]:.0f}" if one.lasting or not takes[one.name] else "passes"
            lines.append(f"| {about} | {name} | {one.seconds:.0f} | {fires} | {one.summary} |")
    lines.append("")
    if rules is BROKERS and all(one.about != FILLED for one in outcomes):
        lines += ["A disk that fills is left out: no volume could be mounted.", ""]
    return lines


def run(folder: Path, of: str, only: str, note: Callable[[Outcome, Scene], None]) -> list[str]:
    """Carry out the faults. Return what went wrong.

    of: whose faults; all if it is empty. note: told what became of each.
    """
    wrong: list[str] = []
    for name, scene_of in SCENES.items():
        if of not in ("", name):
            continue
        own = folder / name
        own.mkdir()
        with scene_of(own) as scene, Prometheus(own / "prometheus", scene.targets, scene.rules) as prometheus:
            prometheus.wait_for_targets()
            until_calm(prometheus)
            for fault in scene.faults:
                if re.search(only, fault.about):
                    outcome = carry_out(prometheus, fault)
                    wrong += outcome.wrong
                    note(outcome, scene)
    return wrong


def _line(outcome: Outcome) -> str:
    seen = ", ".join(f"{one.name} {one.seconds:.0f} s" for one in outcome.seen)
    return f"{outcome.about}: {seen}; calm after {outcome.calm:.0f} s; {outcome.wrong or 'as it should be'}"


def main() -> int:
    """Run the drill, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.alerts", description=__doc__)
    parser.add_argument("--results", type=Path, help="the page to write")
    parser.add_argument(
        "--of", default="", choices=SCENES, help="only faults of these processes; others stay on the page"
    )
    parser.add_argument(
        "--only", default="", help="only faults in whose name this regular expression is found; others stay on the page"
    )
    arguments = parser.parse_args()

    def note(outcome: Outcome, scene: Scene) -> None:
        """Write the page after each fault: the run may be ended."""
        print(_line(outcome), flush=True)
        if arguments.results:
            write_page(arguments.results, page(keep(arguments.results.with_suffix(".json"), outcome, scene)))

    with tempfile.TemporaryDirectory(prefix="pylogd-alerts-") as folder:
        wrong = run(Path(folder), arguments.of, arguments.only, note)
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
