"""pylogd's Python client beside an earlier one: whether a change made a row of `make bench-clients` slower.

    python -m bench.clients_before_after /elsewhere/pylogd [--rounds 12] [--write]

The folder is a checkout of the earlier pylogd, with its environment in `.venv`. Both clients talk to one broker, the
present one, and take turns in each round with the workloads of `bench/clients.py`, after a run that does not count;
which one goes first alternates. A ratio is the median of the rounds' own; the interval behind it has that median with
95 % (bootstrap over rounds): where it has 1 in it, the row is a draw. Rows that the earlier checkout does not have are
left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.before_after import interval
from bench.clients import ROLES, Client, Sample, child_command, measure, pylogd_produce
from bench.machine import machine
from bench.peers import running
from tests.pages import write_page

HERE = Path(__file__).parent
SCALE = 3.0  # of the messages of `bench.clients`, so that no row takes less than a second

Pair = tuple[Sample, Sample]  # after, before
Pairs = dict[tuple[str, str], list[Pair]]


def rows(earlier: Path) -> Iterator[tuple[str, Client]]:
    """Yield role and client of the rows that both checkouts have."""
    known = (earlier / "bench" / "clients.py").read_text(encoding="utf-8")
    for role, clients in ROLES.items():
        for client in clients:
            if client.name.startswith("pylogd") and client.work.__name__ in known:
                yield role, client


def run(earlier: Path, rounds: int, folder: Path, say: Callable[[str], None]) -> Pairs:
    """Return the pairs of samples by role and client's name."""
    found: Pairs = {(role, client.name): [] for role, client in rows(earlier)}
    sides: list[tuple[str, Path]] = [(sys.executable, HERE.parent), (str(earlier / ".venv/bin/python"), earlier)]
    for number in range(rounds):
        with running("pylogd", folder) as peer:
            pylogd_produce(peer.address, int(SCALE * max(client.messages for client in ROLES["consume"])))
            os.sync()  # or the kernel writes the topic while the first rows are measured
            for role, client in rows(earlier):
                # Whoever reads a topic first is up to 2 times slower: that one does not count.
                measure(role, client, child_command(role, client, peer.address, SCALE))
                pair: dict[int, Sample] = {}
                for side in (0, 1) if number % 2 else (1, 0):
                    python, checkout = sides[side]
                    command = child_command(role, client, peer.address, SCALE, python)
                    pair[side] = measure(role, client, command, checkout)
                found[role, client.name].append((pair[0], pair[1]))
                say(f"{number + 1}/{rounds} {role}, {client.name}: {pair[0].rate / pair[1].rate:.2f}")
    return found


def table(found: Pairs, rounds: int, commit: str, minutes: float) -> str:
    """Return the page."""
    lines = [
        "# The Python client after and before a change",
        "",
        f"By `python -m bench.clients_before_after` ({rounds} rounds, by turns; how is told there), beside commit "
        f"{commit}. Above 1 is more messages a second, or more processor time of the client, than the earlier client "
        "had; where the interval has 1 in it, the row is a draw.",
        "",
        "| | messages/s, after : before | CPU, after : before |",
        "| --- | --- | --- |",
    ]
    for (role, name), pairs in found.items():
        rate = interval([after.rate / before.rate for after, before in pairs])
        cpu = interval([after.cpu / before.cpu for after, before in pairs])
        lines.append(f"| {role}: {name} | {rate} | {cpu} |")
    about = ", ".join(f"{name} {value}" for name, value in machine("").items() if value)
    return "\n".join([*lines, "", f"Measured on {about}, minutes {minutes:.1f}.", ""])


def main() -> None:
    """Run the rows."""
    parser = argparse.ArgumentParser(description="pylogd's Python client beside an earlier one")
    parser.add_argument("earlier", type=Path, help="a checkout with its environment in .venv")
    parser.add_argument("--commit", default="of that checkout", help="how to name it on the page")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--write", action="store_true", help="write bench/CLIENTS_BEFORE_AFTER.md")
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pylogd-bench-") as folder:
        found = run(
            options.earlier.resolve(),
            options.rounds,
            Path(folder),
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    text = table(found, options.rounds, options.commit, (time.monotonic() - begun) / 60)
    print(text)
    if options.write:
        write_page(HERE / "CLIENTS_BEFORE_AFTER.md", [text])


if __name__ == "__main__":
    main()
