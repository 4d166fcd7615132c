"""Run the test suite as two parts at the same time: `python tests/parts.py PYTEST [ARGUMENT ...]`, as `make test` does.

One part mostly waits: for sessions to expire, leaders to change, processes to end and start. The other part mostly
computes. Together they take little longer than the longer one. Each file belongs to one part (`part_of`); pytest's
option `--part` runs one part alone.

The computing part writes to the terminal; the waiting part's report follows when both have ended. The exit status is
the first that is not 0. When this process is ended, it stops both parts and waits for them.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent
WAITING, WORKING = "waiting", "working"
PARTS = (WAITING, WORKING)
_STOP_SECONDS = 60.0


def part_of(path: Path) -> str:
    """Return the part of a test file. All tests with Spark are in one part, so that one Spark runs at a time."""
    folder, *rest = path.relative_to(TESTS).parts
    if folder in ("chaos", "crash"):
        return WAITING
    return WAITING if folder == "integration" and rest[0] not in ("spark", "test_demo.py") else WORKING


def main(command: Sequence[str]) -> int:
    """Run both parts with `command`. Return the exit status."""
    started = time.monotonic()
    running: dict[str, subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryFile() as report:
        try:
            for part in PARTS:
                aside = part == WAITING
                running[part] = subprocess.Popen(
                    [*command, "--part", part, "-o", f"cache_dir=.pytest_cache/{part}"],
                    stdout=report if aside else None, stderr=report if aside else None, stdin=subprocess.DEVNULL,
                )  # fmt: skip
            codes = {part: running[part].wait() for part in reversed(PARTS)}
        except KeyboardInterrupt:  # the terminal interrupts the parts too; a second signal would end their cleanup
            _end(running.values(), tell=False)
            raise
        finally:
            _end(running.values(), tell=True)
            report.seek(0)
            print(f"\n{'=' * 40} the waiting part {'=' * 40}", flush=True)
            sys.stdout.buffer.write(report.read())
            sys.stdout.flush()
    outcome = ", ".join(f"{part}: exit status {code}" for part, code in codes.items())
    print(f"both parts took {time.monotonic() - started:.0f} s; {outcome}", flush=True)
    return next((code for code in codes.values() if code), 0)


def _end(processes: Iterable[subprocess.Popen[bytes]], *, tell: bool) -> None:
    """End the parts as Ctrl-C does, so that fixtures stop what they have started."""
    for process in processes:
        if tell and process.poll() is None:
            process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _terminated(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # not ignored, as a shell has it for a job behind it
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
