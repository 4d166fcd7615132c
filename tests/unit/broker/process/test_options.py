"""The options of `pylogd broker` and of `twistd pylogd` give the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylogd.broker.process.options import load_settings
from pylogd.broker.tap import Options
from pylogd.config import ConfigError

CONFIG = '"node.id" = 3\n"log.segment.bytes" = 1500000\n'


def test_options_override_assignments_and_those_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pylogd.toml"
    file.write_text(CONFIG)
    found = load_settings(
        file, listen=["127.0.0.1:1"], data=["/a", "/b"], advertised="host:9",
        assignments=["log.dirs=/c", "log.segment.bytes=2500000", "num.partitions = 7"],
    )  # fmt: skip
    assert found.words("log.dirs") == ("/a", "/b")
    assert [found.integer(name) for name in ("node.id", "log.segment.bytes", "num.partitions")] == [3, 2500000, 7]
    assert (found.listeners[0].port, found.advertised_listeners[0].host) == (1, "host")


@pytest.mark.parametrize("words", [["nothing"], ["=1"], ["no.such.setting=1"]])
def test_wrong_assignments_are_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError):
        load_settings(None, assignments=words)


def test_twistd_reads_the_same(tmp_path: Path) -> None:
    file = tmp_path / "pylogd.toml"
    file.write_text(CONFIG)
    options = Options()
    options.parseOptions(
        ["-c", str(file), "-l", "127.0.0.1:1", "-d", "/a", "--data", "/b", "-n", "4", "-s", "num.partitions=7"]
    )
    found = options.settings()
    assert found.words("log.dirs") == ("/a", "/b")
    assert [found.integer(name) for name in ("node.id", "log.segment.bytes", "num.partitions")] == [4, 1500000, 7]


def test_twistds_help_has_the_texts_of_the_options() -> None:
    text = " ".join(str(Options()).split())
    for word in ("endpoint string (listeners)", "Data directory (log.dirs)", "Any setting; overrides the file"):
        assert word in text
