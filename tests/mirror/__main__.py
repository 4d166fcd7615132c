"""Run it: `python -m tests.mirror --results tests/mirror/RESULTS.md`. `run` says what is done.

Exit status 1 if a record was lost, repeated or out of order.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
from pathlib import Path

from tests.mirror.run import SESSION_MS, Mirroring, MirrorOutcome
from tests.pages import commit_id, write_page

CHECKOUT = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mirror", description=__doc__)
    parser.add_argument("--folder", type=Path, help="folder for data and logs, which is kept")
    parser.add_argument("--results", type=Path, help="a Markdown file for the results")
    parser.add_argument("--calm", type=float, default=8.0, help="seconds of calm after each event")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mirror-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = Mirroring(folder, lambda text: print(text, flush=True), options.calm).run()
    print(f"{outcome.records} records in {outcome.partitions} partitions were compared")
    for fault in outcome.faults[:50]:
        print(f"FAULT {fault}", flush=True)
    if options.results is not None:
        _write(options.results, outcome)
    return 1 if outcome.faults else 0


def _write(path: Path, outcome: MirrorOutcome) -> None:
    """Write the results as Markdown."""
    verdict = "none was lost, repeated or out of order" if not outcome.faults else f"{len(outcome.faults)} FAULTS"
    lines = [
        "# A mirror while workers, topics and links come and go", "",
        f"`make mirror`, {datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}, Python {platform.python_version()}, "
        f"{os.cpu_count()} CPUs, at commit {commit_id()}. Two sources, two targets, four routes, "
        f"{outcome.partitions} partitions, three workers at first, a session timeout of {SESSION_MS} ms, a commit "
        "every 200 ms. A producer writes to every partition 20 times a second; librdkafka reads the copies with "
        "`isolation.level=read_committed` as they come. *Latest* is the longest time from send to arrival.", "",
        f"{outcome.records} records were compared with the sources at the end: {verdict}.", "",
        "| event | moved | latest of moved (s) | kept | latest of kept (s) | latest before the event (s) | |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]  # fmt: skip
    for event in outcome.events:
        moved = f"{event.moved_seconds:.1f}" if event.moved else "-"
        lines.append(
            f"| {event.name} | {event.moved} | {moved} | {event.kept} | {event.kept_seconds:.1f} | "
            f"{event.calm_seconds:.1f} | {event.note} |"
        )
    lines += ["", *(f"- {fault}" for fault in outcome.faults[:50])]
    write_page(path, lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
