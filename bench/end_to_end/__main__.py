"""How long it takes from a producer's send to a row that a query sees, at three rates, with two loaders.

    python -m bench end-to-end [--seconds 120] [--rates 1000,10000,100000] [--loaders follow,streaming] [--write]

Each arm takes its seconds, half a minute of warm-up, half a minute to start, and up to two minutes until everything is
seen. Results are saved after each arm, so `--rates` and `--loaders` repeat some of them; `--page` only writes the page.
Source: the Kafka paper (NetDB 2011), section 4.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.end_to_end.arms import LOADERS, ArmOptions, run_arm
from bench.end_to_end.page import draw, lines
from bench.harness import say
from bench.machine import machine
from pylogd.base.clock import wall_ms
from tests.pages import json_text, write_page

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "end_to_end.json"
PAGE = HERE / "END_TO_END.md"


def main() -> None:
    """Measure and write; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the events that count, in each arm")
    parser.add_argument("--warm", type=float, default=30.0, help="seconds of events before them")
    parser.add_argument("--rates", default="1000,10000,100000", help="events a second")
    parser.add_argument("--loaders", default=",".join(LOADERS), help=f"which of {', '.join(LOADERS)}")
    parser.add_argument("--interval", type=float, default=1.0, help="of `pylogd load --follow`, in seconds")
    parser.add_argument("--state", default="", help="a sentence on the state of the machine, for the page")
    parser.add_argument("--write", action="store_true", help="write the page, the plots and the results")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page from the results")
    said = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"arms": {}}
    if not said.page:
        found |= {"machine": machine("-"), "state": said.state}
        found["date"] = datetime.fromtimestamp(wall_ms() / 1000, UTC).strftime("%Y-%m-%d")
        _measure(said, found)
    if said.write or said.page:
        (HERE / "plots").mkdir(exist_ok=True)
        draw(found, HERE / "plots")
        write_page(PAGE, lines(found))
    print("\n".join(lines(found)))


def _measure(said: argparse.Namespace, found: dict[str, Any]) -> None:
    for loader in said.loaders.split(","):
        for rate in map(int, said.rates.split(",")):
            options = ArmOptions(loader, rate, said.seconds, said.warm, said.interval)
            begun = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="pylogd-end-to-end-") as folder:
                arm = run_arm(options, Path(folder), say)
            found["arms"][f"{loader} {rate}"] = arm
            if said.write:
                RESULTS.write_text(json_text(found))
            say(
                f"{loader}, {rate:,} events/s: p50 {arm['p50'] / 1000:.2f} s, p99 {arm['p99'] / 1000:.2f} s, "
                f"{arm['behind']:,} of {arm['sent']:,} not seen in time; {time.monotonic() - begun:.0f} s in all"
            )


if __name__ == "__main__":
    main()
