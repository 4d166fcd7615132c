"""Mirror a topic to tables on HDFS while the worker is killed: `python -m tests.stores.mirroring --results FILE`.

One broker, one HDFS, and for each format a process of `pylogd mirror run` that copies to a table there without a JVM.
It is killed with SIGKILL after commits and in the middle of what is not committed, and started again. The table must
have each committed record of the topic once, and none that was aborted. The exit code is 1 if not. `pylogd mirror
check` has to accept the file first, and to refuse one whose name node does not answer; the table must not exist then.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import fsspec

from pylogd.base.ports import free_ports
from pylogd.client import Admin, Producer
from pylogd.lake.tables.opening import open_table
from pylogd.local.broker import BrokerProcess, pylogd_command
from tests.mirrors import MirrorProcess, committed, until, write_table_file
from tests.pages import circumstances, write_page
from tests.stores.filesystems import running_hdfs
from tests.tables import read_files

FORMATS = ("parquet", "iceberg", "delta")
PARTITIONS = 3
SECONDS = 240.0


def name_of(kind: str, url: str) -> str:
    """Return the name of the table of a format on HDFS."""
    return {"iceberg": f"iceberg:{url}/warehouse/demo.events"}.get(kind, f"{kind}:{url}/{kind}")


def rows(name: str, properties: Mapping[str, str]) -> dict[int, list[tuple[int, bytes]]]:
    """Return offsets and values in a table, by partition, sorted by offset."""
    table = open_table(name, properties)
    found: dict[int, list[tuple[int, bytes]]] = {index: [] for index in range(PARTITIONS)}
    for columns in read_files(table, table.files()):
        read = columns.select(["partition", "offset", "value"]).to_pydict()
        for index, offset, value in zip(*read.values(), strict=True):
            found[index].append((offset, value))
    return {index: sorted(some) for index, some in found.items()}


def write(bootstrap: str, topic: str, start: int, count: int) -> None:
    """Write records, and a transaction that is aborted."""
    with Producer(bootstrap, compression="zstd", batch_bytes=2000) as producer:
        for number in range(start, start + count):
            producer.send(topic, b"%d" % number, key=b"k", partition=number % PARTITIONS)
    with Producer(bootstrap, transactional_id=f"writer of {topic}") as producer:
        producer.begin_transaction()
        producer.send(topic, b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()


def check(file: Path) -> subprocess.CompletedProcess[str]:
    """Run `pylogd mirror check`."""
    command = [*pylogd_command(), "mirror", "check", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def mirrored(kind: str, url: str, bootstrap: str, folder: Path, kills: int) -> str:
    """Mirror a topic to a table, with kills. Return the row of the results. Raises AssertionError."""
    begun, topic, name = time.monotonic(), f"events-{kind}", name_of(kind, url)
    properties = {"uri": f"sqlite:///{folder / 'catalog.db'}", "type": "sql"} if kind == "iceberg" else {}
    more = "\n".join(f'property.{key} = "{value}"' for key, value in properties.items())
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, 1)
    (gone,) = free_ports(1)
    missing = write_table_file(folder, bootstrap, name_of(kind, f"hdfs://127.0.0.1:{gone}"), topic, more)
    if kind != "iceberg":  # its catalog answers; the warehouse is not opened before the table is made
        done = check(missing)
        assert done.returncode == 1 and "[table.lake]" in done.stderr, done.stderr
    file, log = write_table_file(folder, bootstrap, name, topic, more), folder / "mirror.log"
    done = check(file)
    assert done.returncode == 0, done.stderr
    assert not open_table(name, properties, read_only=True).exists

    def count() -> int:
        return sum(1 for _ in open_table(name, properties).history())

    process = MirrorProcess(file, log)
    try:
        process.wait(SECONDS)
        for kill in range(kills):
            before = count()
            write(bootstrap, topic, 1000 * kill, 600)
            until(lambda before=before: count() > before, "a commit", log.read_text, SECONDS)  # type: ignore[misc]
            write(bootstrap, topic, 1000 * kill + 600, 400)  # some of it is in files that are not committed
            process.kill()
            process = MirrorProcess(file, log)
            process.wait(SECONDS)
        expected = committed(bootstrap, topic)
        total = sum(map(len, expected.values()))
        until(
            lambda: sum(map(len, rows(name, properties).values())) >= total, f"{total} rows", log.read_text, SECONDS
        )  # fmt: skip
        found = rows(name, properties)
        assert {index: [value for _, value in some] for index, some in found.items()} == expected, "rows differ"
        assert all(len({offset for offset, _ in some}) == len(some) for some in found.values()), "an offset twice"
        assert process.stop() == 0, log.read_text()
    finally:
        process.kill()
    return f"| {kind} | {count()} | {kills} | {total:,} | {time.monotonic() - begun:.0f} |"


def report(lines: Sequence[str]) -> list[str]:
    """Return the results as lines of Markdown."""
    return [
        "# A mirror to tables on HDFS", "",
        f"`python -m tests.stores.mirroring`, a part of `make stores`: {circumstances()} `pylogd mirror run` copies a "
        "topic to a table on Hadoop's MiniDFSCluster 3.5.0, by HDFS's own protocol, without a JVM. It is killed "
        "(SIGKILL) in the middle and started again. In the end each committed record of the topic was in the table "
        "once, at its offset, and no other.",
        "", "| format | commits | kills | rows | s |", "| --- | --- | --- | --- | --- |", *lines,
    ]  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.stores.mirroring", description=__doc__)
    parser.add_argument("--only", action="append", choices=FORMATS)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--hdfs", metavar="URL", help="of one that runs; by default a small one is started")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args(arguments)
    fsspec.register_implementation("hdfs", "hdfs_native.fsspec.HdfsFileSystem", clobber=True)  # not by a JVM
    lines = []
    with tempfile.TemporaryDirectory(prefix="pylogd-stores-") as made:
        folder = Path(made)
        broker = BrokerProcess(folder / "data", folder / "log")
        try:
            if options.hdfs:
                lines = _run(options.only or FORMATS, options.hdfs, broker.address, folder, options.kills)
            else:
                with running_hdfs(folder / "hdfs") as url:
                    lines = _run(options.only or FORMATS, url, broker.address, folder, options.kills)
        finally:
            broker.kill()
    if options.results:
        write_page(options.results, report(lines))
    return 0


def _run(kinds: Sequence[str], url: str, bootstrap: str, folder: Path, kills: int) -> list[str]:
    lines = []
    for kind in kinds:
        (folder / kind).mkdir()
        lines.append(mirrored(kind, f"{url}/{folder.name}", bootstrap, folder / kind, kills))
        print(lines[-1], flush=True)
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
