"""Run the Spark SQL of docs/tables.md on Iceberg and Delta tables: `python -m tests.stores.spark_sql`.

As a stranger does: a Spark of its own, of a version that has the packages of both formats, and `spark-sql --packages`.
The exit code is 1 if an answer is not that of the formats' Python libraries.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb

from conformance import checks
from pylogd.lake.tables.interface import commit_with
from tests.docs.blocks import blocks_of
from tests.unit.lake.tables.cases import CASES, Case

HERE = Path(__file__).resolve().parent
DOCS = "docs/tables.md"
CACHE = HERE.parents[1] / ".cache" / "stores"
SPARK = "pyspark~=4.1.0"
TOPIC = "flights"
SECONDS = 600
#: What tells a format's blocks from others.
WORDS = {"delta": ("delta-spark", "delta.`"), "iceberg": ("iceberg-spark", "pylogd.demo.flights")}


def spark_home() -> Path:
    """Return the folder of a Spark that is installed at the first use."""
    folder = CACHE / "spark-4.1"
    if not (folder / "bin" / "spark-submit").exists():
        checks.fetched([sys.executable, "-m", "venv", str(folder)], "a virtual environment")
        checks.fetched([str(folder / "bin" / "pip"), "install", "--quiet", SPARK], SPARK)
    (found,) = folder.glob("lib/python*/site-packages/pyspark")
    return found


def blocks(language: str, word: str) -> list[str]:
    """Return the code blocks of a language that have a word."""
    return [each.text for each in blocks_of(DOCS) if each.language == language and word in each.text]


def filled(text: str, case: Case) -> str:
    """Put the path, and the commit that loaded offset 29, in place of those of the page."""
    found = commit_with(case.open().history(), TOPIC, 0, 29)
    assert found is not None
    text = re.sub(r"VERSION AS OF \d+", f"VERSION AS OF {found.number}", text)
    return text.replace("/data", str(case.directory))


def expected(case: Case) -> str:
    """Return what `spark-sql` has to print: the records by hour, and the last offset of the first load."""
    with duckdb.connect() as connection:
        connection.register("t", case.read())
        rows = connection.execute("SELECT date, hour, count(*) FROM t GROUP BY ALL ORDER BY ALL").fetchall()
    return "".join(f"{date}\t{hour}\t{count}\n" for date, hour, count in rows) + "29\n"


def run(name: str, folder: Path) -> checks.Check:
    """Run the blocks of a format."""
    case = CASES[name](folder)
    table = case.made()
    case.load(table, 30, topic=TOPIC)
    case.load(table, 41, topic=TOPIC)
    shell, sql = WORDS[name]
    (command,) = blocks("sh", shell)
    _, *options = shlex.split(filled(command, case))
    queries = "".join(filled(each, case) for each in blocks("sql", sql))
    more = ["--master", "local[2]", "--conf", f"spark.jars.ivy={CACHE / 'ivy'}", "--conf", "spark.ui.enabled=false"]
    home = spark_home()
    done = subprocess.run(
        [home / "bin" / "spark-sql", *options, *more, "-e", queries], cwd=folder, capture_output=True, text=True,
        timeout=SECONDS, check=False, env={**os.environ, "SPARK_HOME": str(home)},
    )  # fmt: skip
    wanted = expected(case)
    reason = f"exit {done.returncode}: {done.stdout[-500:]!r}, not {wanted!r}: {done.stderr[-1500:]}"
    return checks.expect(name, done.stdout == wanted, reason)


def main() -> int:
    """Run all, and return the exit code."""
    failed = 0
    for name in WORDS:
        with tempfile.TemporaryDirectory(prefix="pylogd-spark-sql-") as folder:
            found = run(name, Path(folder))
        print(f"{found.name}: {found.outcome} {found.reason}", flush=True)
        failed += found.outcome != checks.PASSED
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
