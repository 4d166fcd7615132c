"""Run a suite of tests as parts at once: `python tests/parts.py SUITE PYTEST [ARGUMENT ...]`.

`make test` runs the suite `test`, `make test-long` the suite `test-long`. The folder of a test file decides which of
the two has it (`FOLDERS`): `test` has the unit, property and contract tests, and in `tests/integration`
itself the core of the integration tests. All other folders are for `test-long`: Spark, services, clusters whose brokers
fail again and again, hostile clients, simulations, documents, packages, soaks. The tests of the benchmarks are in
neither (`make bench-test`).

The parts of a suite run side by side, since many wait for much of their time: for sessions to expire, leaders to
change, processes to end and start. Together the parts take little longer than the longest one. Pytest's option `--part`
runs one part alone.

Beside the first tests of a suite an archive of the classes of Spark's JVM is made, with which later ones start faster.

The last part of a suite writes to the terminal; the reports of the others follow once all have ended. The exit status
is the first that is not 0. Whatever ends this process, all parts are stopped and waited for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent
#: The folders of each part of each suite, with paths below `tests`. The deepest folder that is named here counts.
FOLDERS = {
    "test": {
        "core": {"integration"},
        "models": {"property", "contract"},
        "unit": {"unit"},
    },
    "test-long": {
        "clusters": {"integration/clusters", "chain", "fleet"},
        "extremes": {
            "integration/extremes", "integration/machine", "chaos", "crash", "exactly_once", "fuzz", "kills",
            "scale", "simulation",
        },
        "services": {"integration/services", "integration/docs", "transactions_check"},
        "lake": {"integration/spark/lake"},
        "spark": {"integration/spark"},
    },
}  # fmt: skip
PARTS = tuple(part for parts in FOLDERS.values() for part in parts)
#: The part of each folder.
_PART = {folder: part for parts in FOLDERS.values() for part, folders in parts.items() for folder in folders}
_SLOWEST_SHOWN = "--durations=15"
_STOP_SECONDS = 60.0


def part_of(path: Path) -> str:
    """Return the part of a test file, the empty string for a file in a folder without tests."""
    return next((_PART[str(folder)] for folder in path.relative_to(TESTS).parents if str(folder) in _PART), "")


def main(suite: str, command: Sequence[str]) -> int:
    """Run all parts of a suite with `command`. Return the exit status."""
    started = time.monotonic()
    *others, shown = FOLDERS[suite]
    running: dict[str, subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as files:
        environment = files.enter_context(_archived_classes())
        reports = {part: files.enter_context(tempfile.TemporaryFile()) for part in others}
        try:
            for part in (*others, shown):
                output = reports.get(part)
                running[part] = subprocess.Popen(
                    [*command, "--part", part, "-o", f"cache_dir=.pytest_cache/{part}", _SLOWEST_SHOWN],
                    stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment,
                )  # fmt: skip
            codes = {part: running[part].wait() for part in (shown, *others)}
        except KeyboardInterrupt:  # the terminal interrupts the parts too; a second time would end their cleanup
            _end(running.values(), tell=False)
            raise
        finally:
            _end(running.values(), tell=True)
            for part, report in reports.items():
                report.seek(0)
                print(f"\n{'=' * 40} the {part} part {'=' * 40}", flush=True)
                sys.stdout.buffer.write(report.read())
                sys.stdout.flush()
    outcome = ", ".join(f"{part}: exit status {code}" for part, code in codes.items())
    print(f"all parts of {suite} took {time.monotonic() - started:.0f} s; {outcome}", flush=True)
    return next((code for code in codes.values() if code), 0)


@contextlib.contextmanager
def _archived_classes() -> Iterator[dict[str, str]]:
    """Have an archive of Spark's classes made while the tests begin; yield the variables with which they find it."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        archive = Path(folder) / "spark.jsa"
        making = subprocess.Popen(
            [sys.executable, "-m", "tests.spark_classes", str(archive)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, cwd=TESTS.parent,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield {**os.environ, "PYLOGD_TEST_SPARK_CLASSES": str(archive)}
        finally:
            if making.poll() is None:
                os.killpg(making.pid, signal.SIGKILL)
                making.wait()
            elif making.returncode:  # the tests pass without it, but take longer
                errors.seek(0)
                reason = errors.read().decode(errors="replace")[-2000:]
                print(f"\nthe archive of Spark's classes was not made:\n{reason}", flush=True)


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
        sys.exit(main(sys.argv[1], sys.argv[2:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
