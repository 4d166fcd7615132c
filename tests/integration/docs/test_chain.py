"""The chain of docs/pipeline.md, typed block by block: its files, its processes, its programs, and what shows it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from pylogd.base.ports import free_ports
from tests.docs.console import Console
from tests.docs.kinds import blocks_of_kind
from tests.spark_java import driver_options
from tests.tools import haproxy
from tests.zookeeper import ZooKeeper

_FILES = {
    "defaults": "haproxy.cfg",
    '"zookeeper.connect" = "zk1:2181/chain"': "serving.toml",
    'name = "chain"': "chain.toml",
}
_SERVES = "grep -q 127.0.0.1 $LOG"
_MESSAGES = 1000


@pytest.mark.timeout(900)
def test_the_chain_of_the_page(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    blocks = blocks_of_kind("chain")
    ports = sorted(set(re.findall(r"127\.0\.0\.1:\d+", "".join(block.text for block in blocks))))
    here = {port: f"127.0.0.1:{free}" for port, free in zip(ports, free_ports(len(ports)), strict=True)}
    written = {
        **here, "/tmp/chain": str(tmp_path), "zk1:2181/chain-mirror": f"{zookeeper.connect}-mirror",
        "zk1:2181/chain": zookeeper.connect, "haproxy -db": f"{shlex.quote(haproxy())} -db",
    }  # fmt: skip
    endless = {
        r".*haproxy -db .*": f"(echo > /dev/tcp/{here['127.0.0.1:9090'].replace(':', '/')})",
        r"pylogd broker .*": _SERVES,
        r"pylogd mirror run .*": "grep -q 'mirror' $LOG",
        r"pylogd load .* --follow .*": "true",
        r"pylogd audit serve .*": "grep -q 'audit judges' $LOG",
    }
    # the audit and the loader need the topic at the analysis cluster, which the mirror makes
    copied = f"until pylogd topics describe flights -b {here['127.0.0.1:39092']}; do sleep 0.2; done >/dev/null 2>&1"
    environment = {"SPARK_SUBMIT_OPTS": driver_options(), "PYLOGD_OUTPUT": "tsv"}
    with Console(tmp_path, written, endless, environment=environment) as console:
        for block in blocks:
            if name := _FILES.get(block.first):
                (tmp_path / name).write_text(console.filled(block.text))
            elif block.language == "python":
                read_all = f"[ $(wc -l <$LOG) = {_MESSAGES} ]" if "Consumer" in block.text else ""
                console.run(block, until=read_all)
            elif "audit serve" in block.text:
                mirror, rest = block.text.split("pylogd load", 1)
                console.run(type(block)(block.page, block.line, block.language, mirror))
                console.type(copied, "the copy")
                console.run(type(block)(block.page, block.line, block.language, f"pylogd load{rest}"))
            else:
                _loaded(console, tmp_path) if "--history" in block.text else None
                shown = console.run(block)
    assert re.search(rf"^billing\t.*\b{0}\b", shown, re.MULTILINE), shown
    assert f"{_MESSAGES}" in shown and "don't begin the job" in shown, shown


def _loaded(console: Console, folder: Path) -> None:
    """Wait until all messages are in the lake."""
    count = (
        "import json, pathlib, sys; "
        "rows = sum(file['rows'] for path in pathlib.Path(sys.argv[1]).glob('lake/_pylogd/commits/*.json') "
        "for file in json.loads(path.read_bytes())['added']); sys.exit(rows != int(sys.argv[2]))"
    )
    words = shlex.join(["python", "-c", count, str(folder), str(_MESSAGES)])
    console.type(f"until {words}; do sleep 0.5; done", "the lake")
    assert json.loads(sorted((folder / "lake" / "_pylogd" / "commits").glob("*.json"))[-1].read_bytes())["offsets"]
