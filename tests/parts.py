"""Run the test suite as four parts at once, as `make test` does: `python tests/parts.py PYTEST [ARGUMENT ...]`.

Three parts wait for much of their time: for sessions to expire, leaders to change, processes to end and start. One of
them kills brokers and members of clusters, one has clients, commands, services and most unit tests, one the rest of the
integration tests. The fourth part works. Together they take little longer than the longest one. Each file belongs to
one part (`part_of`); pytest's option `--part` runs one part alone.

Beside the first tests an archive of the classes of Spark's JVM is made, with which later ones start faster.

The working part writes to the terminal; the reports of the others follow once all have ended. The exit status is the
first that is not 0. Whatever ends this process, all parts are stopped and waited for.
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
KILLING, SERVING, WAITING, WORKING = "killing", "serving", "waiting", "working"
PARTS = (KILLING, SERVING, WAITING, WORKING)
#: Files of integration tests whose clusters lose brokers, disks or members again and again.
_KILLING_FILES = {
    "test_console_moves.py", "test_console_services.py", "test_eligible_replicas.py", "test_failover.py",
    "test_group_migration.py", "test_hanging_disk.py", "test_labels.py", "test_log_dir_failover.py",
    "test_reassignment.py", "test_secure_replication.py", "test_staged_start.py",
    "test_transaction_failover.py", "test_truncation.py", "test_zookeeper_consumers.py",
}  # fmt: skip
#: Integration tests of clients, commands and the services beside brokers: console, registry, mirror, audit.
_SERVING_NAMES = (
    "test_audit", "test_catalogs", "test_cli", "test_cluster_cli", "test_console", "test_mirror", "test_schema",
    "test_users",
)  # fmt: skip
#: Tests with Spark that run with the part that kills: the working part would take longest.
_SPARK_BESIDE = {
    "test_audit.py", "test_connect.py", "test_docs.py", "test_notebook.py", "test_queries.py", "test_tables.py",
    "test_transactions.py",
}  # fmt: skip
_SLOWEST_SHOWN = "--durations=15"
_STOP_SECONDS = 60.0


def part_of(path: Path) -> str:
    """Return the part of a test file. Two Sparks at a time are the most."""
    folder, *rest = path.relative_to(TESTS).parts
    if folder == "unit":
        return WAITING if rest[:2] == ["broker", "api"] else SERVING
    if folder == "transactions_check":
        return WAITING
    if folder in ("chain", "chaos", "crash", "fleet"):
        return KILLING
    if folder != "integration":
        return WORKING
    if rest[0] in ("spark", "test_demo.py"):
        return KILLING if rest[-1] in _SPARK_BESIDE else WORKING
    if rest[0] in _KILLING_FILES:
        return KILLING
    return SERVING if rest[0] == "docs" or rest[0].startswith(_SERVING_NAMES) else WAITING


def main(command: Sequence[str]) -> int:
    """Run all parts with `command`. Return the exit status."""
    started = time.monotonic()
    running: dict[str, subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as files:
        environment = files.enter_context(_archived_classes())
        reports = {part: files.enter_context(tempfile.TemporaryFile()) for part in PARTS if part != WORKING}
        try:
            for part in PARTS:
                output = reports.get(part)
                running[part] = subprocess.Popen(
                    [*command, "--part", part, "-o", f"cache_dir=.pytest_cache/{part}", _SLOWEST_SHOWN],
                    stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment,
                )  # fmt: skip
            codes = {part: running[part].wait() for part in reversed(PARTS)}
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
    print(f"all parts took {time.monotonic() - started:.0f} s; {outcome}", flush=True)
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
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
