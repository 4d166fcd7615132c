"""The commands of the README against a real broker, and how the broker command starts, fails and stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pylogd.client import Producer
from pylogd.local.broker import pylogd_command
from tests.commands import ok, refused, run
from tests.integration.conftest import Address, StartBroker

SECONDS = 180

#: Modules that only an option, an extra or another command needs.
_NOT_FOR_A_START = {
    "OpenSSL", "argparse", "asyncio", "avro", "bdb", "confluent_kafka", "crc32c", "cryptography", "csv", "difflib",
    "email", "fastavro", "http.client", "importlib.metadata", "kazoo", "matplotlib", "multiprocessing", "numpy",
    "pandas", "prometheus_client", "puresasl", "pyarrow", "pylogd.broker.api.authentication_gate", "pylogd.cli.common",
    "pylogd.broker.log.verify", "pylogd.broker.security.inter_broker", "pylogd.broker.security.mechanisms",
    "pylogd.broker.security.rotation", "pylogd.client", "pylogd.lake", "pylogd.local", "pylogd.services",
    "pylogd.store.zookeeper", "pyspark",
    "re2", "requests", "rich", "service_identity", "ssl", "tomllib", "twisted.scripts", "twisted.web", "urllib.request",
}  # fmt: skip
#: A broker that prints its imported modules in place of its address, and stops.
_WHEN_IT_LISTENS = """
import gc, json, os, signal, sys
from pylogd.cli import main
def announce(_line, **_):
    print(json.dumps({"modules": sorted(sys.modules), "collects": gc.isenabled(), "frozen": gc.get_freeze_count()}))
    os.kill(os.getpid(), signal.SIGTERM)
main.click.echo = announce
main.main()
"""


def run_process(broker: Address, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*pylogd_command(), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "PYLOGD_BOOTSTRAP_SERVER": broker.address},
    )


class TestProcesses:
    """What commands print, and their exit status, as a shell sees them. The other tests call them in this process."""

    def test_a_topic_is_created_written_read_and_deleted(self, broker: Address, topic: str) -> None:
        for arguments, stdin, printed in (
            (("topics", "create", topic, "--partitions", "1"), "", ""),
            (("produce", topic, "--key-separator", ":"), "ada:signed up\nbob:signed up\nada:bought a book\n", ""),
            (("consume", topic, "--until-end"), "", "signed up\nsigned up\nbought a book\n"),
            (("consume", topic, "--count", "1"), "", "signed up\n"),
            (("offsets", topic), "", f"{topic}\t0\t0\t3\t3\n"),
            (("topics", "delete", topic), "", ""),
        ):
            done = run_process(broker, *arguments, stdin=stdin)
            assert (done.returncode, done.stdout, done.stderr) == (0, printed, ""), arguments

    def test_errors_are_one_line_and_have_their_exit_status(self, broker: Address) -> None:
        done = run_process(broker, "topics", "describe", "nowhere")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert done.stderr.startswith("Error: ") and "UNKNOWN_TOPIC_OR_PARTITION" in done.stderr
        done = run_process(broker, "produce", "nowhere", stdin="hello\n")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "Error: there is no topic nowhere: --create creates it\n"
        assert run_process(broker, "produce").returncode == 2


class TestTopics:
    def test_a_topic_is_created_described_changed_and_deleted(self, broker: Address, topic: str) -> None:
        assert ok(broker, "topics", "create", topic, "-p", "3", "-c", "retention.ms=86400000") == ""
        assert topic in ok(broker, "topics", "list", "--names").splitlines()
        listed = {one["topic"]: one for one in json.loads(ok(broker, "topics", "list", "--json"))}
        assert listed[topic] == {"topic": topic, "partitions": 3, "replicas": 1, "internal": False}
        rows = [line.split("\t") for line in ok(broker, "topics", "describe", topic).splitlines()]
        assert [row[:2] for row in rows] == [[topic, "0"], [topic, "1"], [topic, "2"]]
        (described,) = json.loads(ok(broker, "topics", "describe", topic, "--json"))
        assert described["configs"] == {"retention.ms": "86400000"}
        assert len(described["topic_id"]) == 32 and len(described["partitions"]) == 3

        ok(broker, "topics", "alter", topic, "-p", "4", "-c", "max.message.bytes=2000", "-d", "retention.ms")
        (described,) = json.loads(ok(broker, "topics", "describe", topic, "--json"))
        assert described["configs"] == {"max.message.bytes": "2000"} and len(described["partitions"]) == 4

        ok(broker, "topics", "delete", topic)
        assert topic not in ok(broker, "topics", "list", "--names").splitlines()
        assert "UNKNOWN_TOPIC_OR_PARTITION" in refused(broker, "topics", "describe", topic)

    def test_the_producers_of_a_topic(self, broker: Address, topic: str) -> None:
        ok(broker, "topics", "create", topic)
        assert ok(broker, "topics", "producers", topic) == ""
        with Producer(broker.address, idempotence=True) as producer:
            producer.send(topic, b"one", partition=0, timestamp=1_700_000_000_000).result()
        [row] = ok(broker, "topics", "producers", topic).splitlines()
        [shown] = json.loads(ok(broker, "topics", "producers", topic, "--json"))
        assert row.split("\t")[:4] == ["0", str(shown["producer_id"]), "0", "0"]
        assert (shown["partition"], shown["last_timestamp"]) == (0, 1_700_000_000_000)

    def test_errors_of_topic_commands_are_one_line(self, broker: Address, topic: str) -> None:
        ok(broker, "topics", "create", topic)
        assert "TOPIC_ALREADY_EXISTS" in refused(broker, "topics", "create", topic)
        ok(broker, "topics", "create", topic, "--if-not-exists")
        assert "INVALID_TOPIC" in refused(broker, "topics", "create", "no spaces")
        assert "INVALID_CONFIG" in refused(broker, "topics", "create", topic + "x", "-c", "nonsense=1")
        assert "INVALID_PARTITIONS" in refused(broker, "topics", "alter", topic, "-p", "1")
        assert "INVALID_CONFIG" in refused(broker, "topics", "alter", topic, "-c", "retention.ms=soon")
        assert "UNKNOWN_TOPIC" in refused(broker, "topics", "delete", topic + "x")
        ok(broker, "topics", "delete", topic + "x", "--if-exists")
        ok(broker, "topics", "create", topic + "y", "--validate-only")
        assert topic + "y" not in ok(broker, "topics", "list", "--names").splitlines()


class TestRecords:
    def test_produce_and_consume_as_the_readme_shows(self, broker: Address, topic: str) -> None:
        ok(broker, "topics", "create", topic, "--partitions", "3")
        lines = "ada:signed up\nbob:signed up\nada:bought a book\n"
        ok(broker, "produce", topic, "--key-separator", ":", stdin=lines)
        assert sorted(ok(broker, "consume", topic, "--until-end").splitlines()) == [
            "bought a book", "signed up", "signed up",
        ]  # fmt: skip
        found = [
            json.loads(line)
            for line in ok(broker, "consume", topic, "--until-end", "--from", "-2", "--format", "json").splitlines()
        ]
        assert [r["value"] for r in found if r["key"] == "ada"] == ["signed up", "bought a book"]
        rows = [line.split("\t") for line in ok(broker, "offsets", topic).splitlines()]
        assert sum(int(row[4]) for row in rows) == 3

    @pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
    def test_many_lines_come_back_in_order(self, broker: Address, topic: str, codec: str) -> None:
        ok(broker, "topics", "create", topic, "-p", "1")
        lines = "".join(f"line {n}\n" for n in range(20_000))
        ok(broker, "produce", topic, "-z", codec, stdin=lines)
        assert ok(broker, "consume", topic, "--until-end") == lines

    def test_producing_creates_a_missing_topic_only_if_asked_to(self, broker: Address, topic: str) -> None:
        ok(broker, "topics", "create", f"{topic}-events")
        done = run(broker, "produce", f"{topic}-evnts", stdin="hello\n")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"Error: there is no topic {topic}-evnts: did you mean {topic}-events?\n"
        assert f"{topic}-evnts" not in ok(broker, "topics", "list", "--names").splitlines()
        ok(broker, "produce", topic, "--create", stdin="hello\n")
        assert ok(broker, "consume", topic, "--count", "1") == "hello\n"

    @pytest.mark.parametrize(
        "command", [["consume"], ["consume", "--group", "g"], ["topics", "describe"], ["offsets"]], ids=" ".join
    )
    def test_a_misspelt_topic_gets_a_proposal(self, broker: Address, topic: str, command: list[str]) -> None:
        ok(broker, "topics", "create", f"{topic}-events")
        done = run(broker, *command, f"{topic}-evnts")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.endswith(f"there is no topic '{topic}-evnts': did you mean {topic}-events?\n")

    def test_offsets_prints_the_offset_for_a_time(self, broker: Address, topic: str) -> None:
        ok(broker, "topics", "create", topic, "-p", "1")
        ok(broker, "produce", topic, stdin="1\n2\n")
        (row,) = json.loads(ok(broker, "offsets", topic, "--time", "1h", "--json"))
        assert row == {"topic": topic, "partition": 0, "beginning": 0, "end": 2, "records": 2, "at_time": 0}
        assert ok(broker, "offsets", topic, "--time", "2100-01-01").split("\t")[-1] == "-1\n"
        assert ok(broker, "consume", topic, "--until-end", "--from", "1h") == "1\n2\n"

    def test_a_too_large_record_is_an_error(self, broker: Address, topic: str) -> None:
        ok(broker, "topics", "create", topic, "-c", "max.message.bytes=1000")
        done = run(broker, "produce", topic, stdin="x" * 2000 + "\n")
        assert done.returncode == 1 and "MESSAGE_TOO_LARGE" in done.stderr

    def test_consume_ends_when_its_output_is_closed(self, broker: Address, topic: str) -> None:
        ok(broker, "produce", topic, "--create", stdin="line\n" * 50_000)
        consume = subprocess.Popen(
            [*pylogd_command(), "consume", topic, "-b", broker.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert consume.stdout is not None and consume.stderr is not None
        assert consume.stdout.readline() == b"line\n"
        consume.stdout.close()
        ok(broker, "produce", topic, stdin="line\n" * 50_000)
        assert consume.wait(SECONDS) == 141
        assert consume.stderr.read() == b""
        consume.stderr.close()

    @pytest.mark.parametrize("arguments", [["consume"], ["produce"]])
    def test_ctrl_c_ends_the_command_at_once(self, broker: Address, topic: str, arguments: list[str]) -> None:
        ok(broker, "produce", topic, "--create", stdin="line\n")
        process = subprocess.Popen(
            [*pylogd_command(), *arguments, topic, "-b", broker.address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None and process.stdin is not None
        if arguments == ["consume"]:
            assert process.stdout.readline() == b"line\n"
        else:
            process.stdin.write(b"typed\n")
            process.stdin.flush()
            assert ok(broker, "consume", topic, "--count", "2") == "line\ntyped\n", "a line is sent when it is typed"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
        told = b"" if arguments == ["consume"] else b"Interrupted: 1 line is acknowledged. Go on with --skip-lines 1\n"
        assert (process.returncode, err) == (130, told)


def test_cluster_prints_brokers_and_controller(broker: Address) -> None:
    described = json.loads(ok(broker, "cluster", "--json"))
    (found,) = described["brokers"]
    assert f"{found['host']}:{found['port']}" == broker.address
    assert described["cluster_id"] and described["controller"] == found["broker"]
    assert ok(broker, "cluster").split("\t")[1] == found["host"]


class TestFiles:
    def test_verify_log_and_dump_log_read_a_stopped_broker_s_files(self, start_broker: StartBroker) -> None:
        broker = start_broker()
        ok(broker, "topics", "create", "t", "-p", "1")
        ok(broker, "produce", "t", "-z", "lz4", stdin="one\ntwo\n")
        assert broker.stop() == 0
        assert "error" not in ok(broker, "verify-log", str(broker.data), "--records")
        (segment,) = (broker.data / "t-0").glob("*.log")
        dumped = ok(broker, "dump-log", str(segment), "--records")
        assert "compression lz4" in dumped and "b'two'" in dumped
        assert "b'two'" not in ok(broker, "dump-log", str(segment))

        damaged = bytearray(segment.read_bytes())
        damaged[-1] ^= 1
        segment.write_bytes(damaged)
        done = run(broker, "verify-log", str(broker.data / "t-0"))
        assert done.returncode == 1 and "error" in done.stdout and not done.stderr
        findings = json.loads(run(broker, "verify-log", "--json", str(broker.data)).stdout)
        assert str(segment) in [finding["path"] for finding in findings if finding["severity"] == "error"]
        assert run(broker, "verify-log", "--quiet", str(broker.data)).stdout == ""

    def test_verify_log_and_dump_log_refuse_other_files(self, broker: Address, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("x")
        assert "notes.txt" in refused(broker, "dump-log", str(tmp_path / "notes.txt"))
        assert run(broker, "verify-log", str(tmp_path / "none")).returncode == 2


class TestBroker:
    """Error messages and exit codes when the broker can't start, and a clean stop when it can."""

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*pylogd_command(), "broker", *arguments], capture_output=True, text=True, timeout=SECONDS, check=False
        )

    def fails(self, *arguments: str, code: int = 1) -> str:
        done = self.start(*arguments)
        assert done.returncode == code and done.stdout == ""
        assert "Traceback" not in done.stderr
        return done.stderr

    def test_a_port_in_use_is_an_error(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            where = f"127.0.0.1:{taken.getsockname()[1]}"
            said = self.fails("--listen", where, "--data", str(tmp_path))
        assert f"can't listen on {where}: Address already in use" in said

    def test_a_data_directory_in_use_is_an_error(self, start_broker: StartBroker) -> None:
        broker = start_broker()
        assert "in use" in self.fails("--listen", "127.0.0.1:0", "--data", str(broker.data))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write to every directory")
    def test_a_read_only_data_directory_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir(mode=0o500)
        assert "Permission denied" in self.fails("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))

    def test_a_data_directory_that_can_not_be_created_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        said = self.fails("--listen", "127.0.0.1:0", "--data", str(tmp_path / "file" / "data"))
        assert str(tmp_path / "file") in said

    @pytest.mark.parametrize(
        ("content", "message"),
        [("log.segment.bytes = [", "broker.toml"), ('log.segment.byte = "1"', "did you mean log.segment.bytes?")],
    )
    def test_bad_settings_are_an_error(self, tmp_path: Path, content: str, message: str) -> None:
        config = tmp_path / "broker.toml"
        config.write_text(content)
        said = self.fails("--config", str(config), "--data", str(tmp_path / "data"), code=2)
        assert message in said and said.count("\n") == 1

    @pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
    def test_a_stop_by_signal_is_clean(self, start_broker: StartBroker, stop: signal.Signals) -> None:
        first = start_broker(arguments=["--set", "num.partitions=2"])
        ok(first, "produce", "t", "--create", stdin="kept\n")
        first.process.send_signal(stop)
        assert first.process.wait(SECONDS) == 0
        second = start_broker()
        assert ok(second, "consume", "t", "--until-end") == "kept\n"
        assert len(ok(second, "offsets", "t").splitlines()) == 2

    def test_a_start_imports_only_what_it_needs(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-c", _WHEN_IT_LISTENS, "broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path)],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert not _NOT_FOR_A_START & set(found["modules"])
        assert found["collects"] and found["frozen"]  # a start does not need it


def test_python_m_pylogd_runs_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pylogd", "--version"], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert done.stdout.startswith("pylogd ")
