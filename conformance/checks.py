"""Building blocks of conformance suites: checks, optional tools, downloads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "conformance"

PASSED, FAILED, SKIPPED, MISSING = "passed", "failed", "skipped", "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One test of one suite. `reason` says why it did not pass, in one line."""

    name: str
    outcome: str
    reason: str = ""


class Missing(Exception):
    """Raised if something that a suite needs is not available. The text is one line for the table."""


def tool(name: str, package: str) -> str:
    """Return the path of a program. Raises Missing, which names Debian's package."""
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed (Debian: apt-get install {package})")
    return found


def run(
    command: Sequence[str],
    *,
    seconds: float,
    stdin: str | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. After `seconds` it is killed; its exit code is then -1."""
    try:
        return subprocess.run(
            command,
            input="" if stdin is None else stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            cwd=folder,
            env=os.environ | dict(environment or {}),
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        said = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else ""
        return subprocess.CompletedProcess(command, -1, "", f"{said}\nnot finished after {seconds:.0f} s")


def fetched(command: Sequence[str], what: str, *, seconds: float = 600, **more: object) -> None:
    """Run a command that downloads `what`. Raises Missing if it fails."""
    done = run(command, seconds=seconds, **more)  # type: ignore[arg-type]
    if done.returncode:
        raise Missing(f"{what} is not available: {last_line(done.stderr or done.stdout)}")


def last_line(text: str) -> str:
    """Return the last non-empty line, shortened: usually the reason of a failure."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def expect(name: str, condition: bool, reason: str) -> Check:
    """Return a check that has passed if the condition holds."""
    return Check(name, PASSED) if condition else Check(name, FAILED, reason)


_LINE = re.compile(r"^(ok|not ok) ([^:]+)(?:: (.*))?$")


def reported(output: str) -> list[Check]:
    """Parse the checks of a program that prints `ok NAME` and `not ok NAME: REASON` lines."""
    checks = []
    for line in output.splitlines():
        match = _LINE.match(line.strip())
        if match:
            outcome = PASSED if match[1] == "ok" else FAILED
            checks.append(Check(match[2].strip(), outcome, (match[3] or "")[:300]))
    return checks


def program(command: Sequence[str], *, seconds: float, **more: object) -> list[Check]:
    """Run such a program. An exit with an error but without a failed check counts as a failed check."""
    done = run(command, seconds=seconds, **more)  # type: ignore[arg-type]
    checks = reported(done.stdout)
    if done.returncode and not any(check.outcome == FAILED for check in checks):
        checks.append(Check("runs to its end", FAILED, last_line(done.stderr or done.stdout)))
    return checks


def from_junit(results: Path, name: Callable[[str, str], str]) -> list[Check]:
    """Return the tests of a pytest run as checks. `name(module, test)` makes the name of each."""
    return [_from_case(case, name) for case in ElementTree.parse(results).iter("testcase")]


def _from_case(case: ElementTree.Element, name: Callable[[str, str], str]) -> Check:
    title = name(case.get("classname", ""), case.get("name", ""))
    for kind, outcome in (("failure", FAILED), ("error", FAILED), ("skipped", SKIPPED)):
        found = case.find(kind)
        if found is not None:
            lines = [line for line in (found.get("message") or "").splitlines() if line.strip()]
            return Check(title, outcome, lines[0].strip()[:300] if lines else kind)
    return Check(title, PASSED)
