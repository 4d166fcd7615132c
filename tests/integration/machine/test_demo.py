"""`pylogd demo` as `make demo` runs it, with the flights data set and with a file of lines."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pylogd.cli import demo_lake
from pylogd.local.broker import pylogd_command

pytestmark = pytest.mark.timeout(900)
SECONDS = 800


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*pylogd_command(), "demo", *arguments], capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_the_demo_verifies_and_loads_the_flights(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    picture = tmp_path / "delays.png"
    done = demo("--picture", str(picture))
    assert (done.returncode, done.stderr) == (0, "")
    for said in (
        "published 336,776 events",
        "read      336,776 events",
        "order within each of 4,044 keys, and content: the same",
        "stopped cleanly",
        "United Air Lines Inc.",
        "loaded 336,776 rows into 4 Parquet files",
        f"drawn: {picture}",
        "audit: 336,776 delivered by the producer; in the lake 0 are missing and 0 duplicate",
        "audit complete",
        "duckdb    counted delays by carrier and hour in the lake",
    ):
        assert said in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_missing_java_is_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_lake, "_JAVA", 10**6)
    assert "apt-get install default-jre-headless" in (demo_lake.what_is_missing() or "")


def test_the_demo_verifies_the_lines_of_a_file(tmp_path: Path) -> None:
    log = tmp_path / "some.log"
    log.write_bytes(b"".join(b"line %d of a log\n" % n for n in range(5000)) + b"\n\xff not text\nno end")
    done = demo("--file", str(log), "--partitions", "3", "--compression", "lz4")
    assert (done.returncode, done.stderr) == (0, "")
    assert "read      5,003 events" in done.stdout
    # Records without keys go to one partition per batch, so the number of partitions in use varies.
    assert re.search(r"order within each of \d partitions?, and content: the same", done.stdout)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    assert demo("--file", str(tmp_path / "none")).returncode == 2
