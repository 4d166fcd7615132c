"""franz-go's own integration tests of consumer groups and of transactions: TestGroupETL and TestTxnEtl.

Records go through chains of three groups, from topic to topic, whose members come and go: with classic groups (range,
cooperative, static members) and with groups of the newer protocol. Each record has to arrive once and in order; in
TestTxnEtl each step is a transaction of records and offsets.
"""

from __future__ import annotations

import re
from pathlib import Path

from conformance import checks, go_clients
from conformance.checks import CACHE, FAILED, PASSED, SKIPPED, Check

_PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
_TESTS = "^(TestGroupETL|TestTxnEtl)$"
#: The suite's default is 500,000, for clusters on machines of their own.
_RECORDS = 50_000
_SECONDS = 1200
_OUTCOMES = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}


def version() -> str:
    """Return the pinned version."""
    return next(one for one in go_clients.version().split(", ") if one.startswith("franz-go"))


def suite(address: str) -> list[Check]:
    """Each of its tests is a check."""
    program = Path(go_clients.build())
    command = [
        checks.tool("go", "golang-go"),
        "test",
        "-count=1",
        "-v",
        "-run",
        _TESTS,
        f"-timeout={_SECONDS}s",
        _PACKAGE,
    ]
    done = checks.run(
        command, seconds=_SECONDS + 300, folder=program.parent / "source",
        environment={
            **go_clients.environment(), "KGO_SEEDS": address, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(_RECORDS),
            "KGO_LOG_LEVEL": "none",
        },
    )  # fmt: skip
    (CACHE / "franz-go.log").write_text(done.stdout + done.stderr)
    outcomes = re.findall(r"^ *--- (PASS|FAIL|SKIP): (\S+)", done.stdout, re.MULTILINE)
    said = [line.strip() for line in done.stdout.splitlines() if re.match(r" +\w+\.go:\d+: ", line)]
    why = "; ".join(said[:3]) or checks.last_line(done.stderr or done.stdout)
    found = [Check(name, _OUTCOMES[outcome], why if outcome == "FAIL" else "") for outcome, name in outcomes]
    return found or [Check("runs to its end", FAILED, why)]
