"""Run the fuzz targets for a bounded time: `python -m tests.fuzz [TARGET ...] [--seconds N] [--keep]`.

Each target runs in a process of its own under atheris, which instruments `pylogd.wire` and guides its inputs by the
branches that they reach. An input that a target does not survive is written to `.cache/fuzz/<target>/` and printed as
hexadecimal digits: add it to the corpus together with the fix. With `--keep`, the corpus becomes the smallest set found
that reaches all of the code that was reached.

Exit status: 0 if nothing was found, 1 if something was, 2 for a usage error.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

_CHECKOUT = Path(__file__).resolve().parents[2]
_FOUND = _CHECKOUT / ".cache" / "fuzz"
_NAMES = ("frames", "batches", "messages")
_CHILD = "--child"
_LAST_LINES = 40
_LIMITS = ("-max_len=4096", "-timeout=10", "-rss_limit_mb=1500", "-print_final_stats=1")


def main(arguments: Sequence[str]) -> int:
    """Run the targets that are named, or all; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="coverage-guided fuzzing of the wire code"
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(_NAMES)}; all if none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together (60)")
    parser.add_argument("--keep", action="store_true", help="write what reaches new code to tests/fuzz/corpus")
    options = parser.parse_args(arguments)
    unknown = set(options.targets) - set(_NAMES)
    if unknown:
        parser.error(f"unknown target: {', '.join(sorted(unknown))}")
    targets = options.targets or list(_NAMES)
    seconds = max(1, options.seconds // len(targets))
    return max([_fuzz(target, seconds, keep=options.keep) for target in targets])


def _fuzz(target: str, seconds: int, *, keep: bool) -> int:
    """Fuzz one target; return 1 if it failed on an input."""
    from tests.fuzz import corpus  # noqa: PLC0415 - the child must not import pylogd before it is instrumented

    found = _FOUND / target
    found.mkdir(parents=True, exist_ok=True)
    before = set(found.iterdir())
    with TemporaryDirectory() as folder:
        work, least = Path(folder, "corpus"), Path(folder, "least")
        work.mkdir()
        least.mkdir()
        for data in (*corpus.stored(target), *corpus.seeds(target)):
            (work / sha256(data).hexdigest()).write_bytes(data)
        status = _run(target, f"-artifact_prefix={found}/", f"-max_total_time={seconds}", str(work))
        if keep and not status:
            status = _run(target, "-merge=1", str(least), str(work))
            kept = [path.read_bytes() for path in least.iterdir()]
            if kept:
                corpus.store(target, kept)
    for path in sorted(set(found.iterdir()) - before):
        print(f"fuzz: {target} failed on {path.relative_to(_CHECKOUT)}: {path.read_bytes().hex()}")
    print(f"fuzz: {target}: {'failed, see above' if status else 'nothing found'}", flush=True)
    return 1 if status else 0


def _run(target: str, *options: str) -> int:
    """Run the fuzzer's process, return its exit status, and print the end of its output if it failed."""
    log = _FOUND / f"{target}.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "tests.fuzz", _CHILD, target, *_LIMITS, *options]
        status = subprocess.run(command, cwd=_CHECKOUT, check=False, stdout=output, stderr=output).returncode
    if status:
        print("\n".join(log.read_text("utf-8", "replace").splitlines()[-_LAST_LINES:]))
    return status


def _child(target: str, options: Sequence[str]) -> None:
    """Run one target in this process, which ends here."""
    import atheris  # noqa: PLC0415 - nobody but the child needs it

    with atheris.instrument_imports(include=["pylogd.wire"]):
        from pylogd.wire import records  # noqa: PLC0415 - what is imported here is instrumented
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415
    if records.speedups is None:
        print("fuzz: pylogd has no compiled loops here: only those in Python are tested", file=sys.stderr)
    itself = (
        f"{sys.executable} -m tests.fuzz {_CHILD} {target}"  # libFuzzer runs it by the shell for each step of a merge
    )
    atheris.Setup([itself, *options], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # an installed pylogd, which has the compiled loops, before that of the checkout
    if sys.argv[1:2] == [_CHILD]:
        _child(sys.argv[2], sys.argv[3:])
    sys.exit(main(sys.argv[1:]))
