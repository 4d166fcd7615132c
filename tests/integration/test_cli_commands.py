"""Commands on topics, settings, records and files against a real broker, in all formats."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from click.shell_completion import BashComplete

from pylogd.cli.main import pylogd
from pylogd.client import Consumer, Producer
from pylogd.local.broker import pylogd_command
from tests.commands import ok, refused, run
from tests.integration.conftest import Address

SECONDS = 180
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_topics_by_expression_with_sizes(broker: Address, topic: str) -> None:
    for name in ("-a", "-b", "x"):
        ok(broker, "topics", "create", topic + name, "-p", "2")
    ok(broker, "produce", topic + "-a", stdin="one\ntwo\nthree\n")
    pattern = f"{topic}-."
    assert ok(broker, "topics", "list", "--names", "--regex", pattern).split() == [topic + "-a", topic + "-b"]
    first, second = json.loads(ok(broker, "topics", "list", "--sizes", "--json", "--regex", pattern))
    assert (first["records"], first["partitions"], second["records"], second["bytes"]) == (3, 2, 0, 0)
    assert first["bytes"] > 10
    assert [line.split("\t")[0] for line in ok(broker, "offsets", "-R", pattern).splitlines()] == [
        topic + "-a", topic + "-a", topic + "-b", topic + "-b",
    ]  # fmt: skip
    assert "nothing matches" in refused(broker, "topics", "describe", "--regex", topic)
    done = run(broker, "topics", "delete", "--regex", pattern)
    assert done.returncode == 2 and "confirm it with --yes" in done.stderr
    ok(broker, "topics", "delete", "--regex", pattern, "--yes")
    assert ok(broker, "topics", "list", "--names", "-R", f"{topic}.+").split() == [topic + "x"]
    assert run(broker, "topics", "list", "--regex", "(").returncode == 2


def test_old_records_are_deleted(broker: Address, topic: str) -> None:
    ok(broker, "topics", "create", topic, "-p", "1")
    ok(broker, "produce", topic, stdin="1\n2\n3\n")
    dry = run(broker, "topics", "delete-records", topic, "--before", "2", "--dry-run", "--json")
    assert (dry.returncode, dry.stderr) == (0, "Nothing was deleted (--dry-run).\n")
    assert json.loads(dry.stdout) == [
        {"topic": topic, "partition": 0, "beginning": 0, "new_beginning": 2, "deleted": 2}
    ]
    assert ok(broker, "topics", "delete-records", topic, "--before", "2") == f"{topic}\t0\t0\t2\t2\n"
    assert ok(broker, "consume", topic, "--until-end") == "3\n"
    assert ok(broker, "topics", "delete-records", topic, "--before", "1h").endswith("\t2\t2\t0\n")
    assert ok(broker, "topics", "delete-records", topic, "--before", "end").endswith("\t2\t3\t1\n")
    assert run(broker, "topics", "delete-records", topic, "--before", "then").returncode == 2
    assert "has no partition 7" in refused(broker, "topics", "delete-records", topic, "--before", "end", "-p", "7")


def test_settings_are_read_changed_compared_and_edited(
    broker: Address, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(broker, "topics", "create", topic, topic + "2")
    set_ = run(broker, "config", "set", "topic", topic, "retention.ms=1000", "cleanup.policy=compact")
    assert set_.stderr == f"topic {topic}: retention.ms, cleanup.policy changed\n"
    assert ok(broker, "config", "get", "topic", topic, "retention.ms") == "retention.ms\t1000\ttopic\n"
    assert len(json.loads(ok(broker, "config", "get", "topic", topic, "--json"))) > 20
    assert {line.split("\t")[0] for line in ok(broker, "config", "diff", "topic", topic).splitlines()} >= {
        "retention.ms", "cleanup.policy",
    }  # fmt: skip
    differing = run(broker, "config", "diff", "topic", topic, topic + "2", "--json")
    assert differing.returncode == 1
    assert [one["name"] for one in json.loads(differing.stdout)] == ["cleanup.policy", "retention.ms"]
    assert "did you mean retention.ms?" in refused(broker, "config", "get", "topic", topic, "retention.m")
    assert "INVALID_CONFIG" in refused(broker, "config", "set", "topic", topic, "retention.ms=soon", "--dry-run")

    editor = tmp_path / "editor"
    editor.write_text(
        f"#!{sys.executable}\nimport sys\npath = sys.argv[1]\ntext = open(path).read()\n"
        "assert '#retention.bytes=-1' in text, text\n"
        "open(path, 'w').write(text.replace('cleanup.policy=compact', '').replace('retention.ms=1000', "
        "'retention.ms=2000').replace('#retention.bytes=-1', 'retention.bytes=5'))\n"
    )
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    edited = run(broker, "config", "edit", "topic", topic)
    assert edited.returncode == 0, edited.stderr
    assert "retention.ms: 1000 -> 2000" in edited.stderr and "cleanup.policy: compact -> default" in edited.stderr
    found = {one["name"]: one for one in json.loads(ok(broker, "config", "get", "topic", topic, "--json"))}
    assert [found[name]["value"] for name in ("retention.ms", "cleanup.policy", "retention.bytes")] == [
        "2000", "delete", "5",
    ]  # fmt: skip
    assert found["cleanup.policy"]["source"] != "topic"

    run(broker, "config", "set", "broker", "all", "message.max.bytes=2000000")
    try:
        assert "message.max.bytes\t2000000\tall brokers, at run time" in ok(broker, "config", "get", "broker", "1")
    finally:
        run(broker, "config", "set", "broker", "all", "--delete", "message.max.bytes")
    assert run(broker, "config", "get", "broker", "first").returncode == 2


def test_an_edit_that_is_refused_is_kept(
    broker: Address, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(broker, "topics", "create", topic)
    editor = tmp_path / "editor"
    editor.write_text(f"#!{sys.executable}\nimport sys\nopen(sys.argv[1], 'w').write('retention.ms=soon\\n')\n")
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    mistaken = run(broker, "config", "edit", "topic", topic)
    assert mistaken.returncode == 1 and "INVALID_CONFIG" in mistaken.stderr
    kept = Path(mistaken.stderr.split("What you edited is in ")[1].splitlines()[0])
    assert kept.read_text() == "retention.ms=soon\n"
    kept.unlink()


def test_records_are_copied_by_json(broker: Address, topic: str) -> None:
    for name in (topic, topic + "-copy"):
        ok(broker, "topics", "create", name, "-p", "2")
    with Producer(broker.address) as producer:
        for number in range(6):
            producer.send(
                topic, None if number == 3 else b"\xff%d" % number, b"k%d" % number, partition=number % 2,
                timestamp=1_700_000_000_000 + number, headers=[("h", b"\x00"), ("n", None)],
            )  # fmt: skip
    printed = ok(broker, "consume", topic, "--until-end", "-f", "json")
    ok(broker, "produce", topic + "-copy", "-f", "json", "--keep-partitions", stdin=printed)
    copies = []
    with Consumer(broker.address) as consumer:
        for name in (topic, topic + "-copy"):
            partitions = consumer.partitions(name)
            ends = consumer.end_offsets(partitions)
            consumer.assign(dict.fromkeys(partitions, 0))
            found = []
            while any(consumer.position(at) < end for at, end in ends.items()):
                found += [record[1:] for record in consumer.poll(1.0)]
            copies.append(sorted(found))
    assert len(copies[0]) == 6 and copies[0] == copies[1]
    done = run(broker, "produce", topic, "-f", "json", stdin='{"value": "ok"}\n{"value": 7}\n')
    assert done.returncode == 1 and done.stderr == (
        "Error: standard input: line 2: value has to be text or null, not 7. 1 line before it is acknowledged. Correct "
        "it and go on with --skip-lines 1, or leave it out with --skip-lines 2\n"
    )


def test_templates_several_topics_and_bounds(broker: Address, topic: str) -> None:
    for name in (topic + "-a", topic + "-b"):
        ok(broker, "topics", "create", name, "-p", "1")
        ok(broker, "produce", name, "-K", ":", stdin="k:1\nk:2\nk:3\n")
    template = r"%t %p %o %k=%v\n"
    both = ok(broker, "consume", "--regex", f"{topic}-.", "--to", "2", "-f", template)
    assert sorted(both.splitlines()) == [f"{topic}-{name} 0 {n} k={n + 1}" for name in "ab" for n in range(2)]
    assert ok(broker, "consume", topic + "-a", "--from", "1", "--to", "end", "-f", "%v,") == "2,3,"
    assert ok(broker, "consume", topic + "-a", "--to", "1h") == ""
    assert ok(broker, "consume", topic + "-a", "--to", "99", "--from", "2") == "3\n", "not after the present end"
    wrong = run(broker, "consume", topic + "-a", "-f", "end")
    assert wrong.returncode == 2 and "To start there, use --from end" in wrong.stderr
    for arguments in (["-f", "%q"], ["--to", "then"], ["--to", "5", "--group", "g"]):
        assert run(broker, "consume", topic + "-a", *arguments).returncode == 2, arguments


def test_groups_have_state_members_and_lag(broker: Address, topic: str) -> None:
    ok(broker, "topics", "create", topic, "-p", "2")
    ok(broker, "produce", topic, stdin="1\n2\n3\n4\n5\n")
    group = f"{topic}-group"
    ok(broker, "consume", topic, "--group", group, "--count", "2")
    [found] = json.loads(ok(broker, "groups", "list", "--lag", "--json", "--regex", f"{topic}-.*"))
    assert (found["group"], found["state"], found["members"], found["lag"]) == (group, "Empty", 0, 3)
    [line] = ok(broker, "groups", "list", group).splitlines()
    assert line.split("\t")[:3] == [group, "Empty", "consumer"]
    assert sum(one["lag"] for one in json.loads(ok(broker, "groups", "describe", group, "--json"))[0]["offsets"]) == 3


def test_a_pipe_gets_what_a_terminal_gets(broker: Address, topic: str) -> None:
    ok(broker, "topics", "create", topic, "-p", "2", "-c", "retention.ms=7000000000000")
    ok(broker, "produce", topic, stdin="1\n")
    ok(broker, "consume", topic, "--until-end", "--group", topic)
    for arguments in (
        ["topics", "list", topic, "--sizes"], ["topics", "describe", topic], ["groups", "describe", topic],
    ):  # fmt: skip
        command = [*pylogd_command(), *arguments, "-b", broker.address, "--output", "table"]
        piped = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
        ours, theirs = pty.openpty()
        os.set_blocking(ours, True)
        with subprocess.Popen(command, stdout=theirs, env={**os.environ, "COLUMNS": "300", "TERM": "xterm"}) as process:
            os.close(theirs)
            shown = b""
            while True:
                try:
                    piece = os.read(ours, 1 << 16)
                except OSError:  # the process has closed its end
                    break
                if not piece:
                    break
                shown += piece
            os.close(ours)
            assert process.wait(SECONDS) == 0
        assert COLOUR.sub("", shown.decode()).replace("\r\n", "\n") == piped, arguments
        assert "\x1b[1m" in shown.decode() and piped.count("\n") > 1
        as_json, as_yaml = (ok(broker, *arguments, "--output", form) for form in ("json", "yaml"))
        assert json.loads(as_json) == yaml.safe_load(as_yaml)


def test_data_directories_are_added_up(broker: Address, topic: str) -> None:
    ok(broker, "topics", "create", topic, "-p", "3")
    ok(broker, "produce", topic, stdin="1\n2\n")
    [by_topic] = json.loads(ok(broker, "logdirs", topic, "--by", "topic", "--json"))
    assert by_topic["partitions"] == 3 and by_topic["bytes"] > 10
    parts = json.loads(ok(broker, "logdirs", topic, "--by", "partition", "--json"))
    assert len(parts) == 3 and sum(one["bytes"] for one in parts) == by_topic["bytes"]
    [directory] = json.loads(ok(broker, "logdirs", "--json"))
    assert directory["state"] == "online" and directory["bytes"] >= by_topic["bytes"]


def test_measurements_are_complete(broker: Address, topic: str, tmp_path: Path) -> None:
    ok(broker, "topics", "create", topic, "-p", "2")
    sent = json.loads(ok(broker, "bench", "produce", topic, "--records", "500", "--size", "64", "--json"))
    assert (sent["records"], sent["errors"]) == (500, 0) and sent["max_ms"] >= sent["p50_ms"] > 0
    late = run(
        broker, "bench", "latency", topic, "--rate", "200", "--seconds", "1", "--hdr", str(tmp_path / "h"), "--json"
    )
    assert late.returncode == 0, late.stderr
    figures = json.loads(late.stdout)
    assert (figures["records"], figures["lost"], figures["errors"]) == (200, 0, 0)
    assert "Percentile" in (tmp_path / "h").read_text()
    assert json.loads(ok(broker, "bench", "consume", topic, "--json"))["records"] == 700
    assert json.loads(ok(broker, "bench", "consume", topic, "--json", "--records", "9"))["records"] == 9
    assert "UNKNOWN_TOPIC" in refused(broker, "bench", "produce", topic + "x")
    looked = json.loads(ok(broker, "top", "--once", "--interval", "0.2", "--json"))
    assert topic in [one["topic"] for one in looked["topics"]] and looked["brokers"][0]["state"] == "up"


def test_a_bundle_has_no_secrets(broker: Address, topic: str, tmp_path: Path) -> None:
    ok(broker, "topics", "create", topic, "-c", "retention.ms=7")
    log, target = tmp_path / "a.log", tmp_path / "b.zip"
    log.write_text('started\nsasl.jaas.config=x password="s3cret"; token: s3cret\nAuthorization: Basic s3cret\n')
    done = run(
        broker, "debug", "bundle", "--to", str(target), "--log", str(log), "--metrics", "http://127.0.0.1:1/metrics"
    )
    assert (done.returncode, done.stdout) == (0, f"{target}\n")
    assert "metrics-0-127.0.0.1.txt" in done.stderr and "refused" in done.stderr
    with zipfile.ZipFile(target) as archive:
        files = {Path(name).name: archive.read(name).decode() for name in archive.namelist()}
    assert not [name for name, text in files.items() if "s3cret" in text]
    assert "started" in files["log-0-a.log"] and "[hidden]" in files["log-0-a.log"]
    assert json.loads(files["topic_settings.json"])[topic] == [
        {"name": "retention.ms", "source": "topic", "value": "7"}
    ]
    assert list(json.loads(files["errors.json"])) == ["metrics-0-127.0.0.1.txt"]
    assert target.stat().st_mode & 0o077 == 0
    assert run(broker, "debug", "bundle", "--to", str(target)).returncode == 1, "an existing file stays"


def test_a_bundle_of_a_cluster_that_is_down_has_the_rest(tmp_path: Path) -> None:
    down = type("Down", (), {"address": "127.0.0.1:1"})()
    done = run(down, "debug", "bundle", "--to", str(tmp_path / "b.zip"))
    assert done.returncode == 0 and "not in the bundle: cluster" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["topi"], "topics"),
        (["topics", "desc"], "describe"),
        (["topics", "describe", "{topic}"], "{topic}-one"),
        (["consume", "--group", "{topic}"], "{topic}-group"),
        (["groups", "describe", "{topic}"], "{topic}-group"),
        (["config", "get", "topic", "{topic}"], "{topic}-one"),
        (["topics", "list", "--outp"], "--output"),
        (["topics", "list", "--output", "ya"], "yaml"),
    ],
)
def test_a_shell_completes_commands_and_names(
    broker: Address, topic: str, words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{topic}-one"
    if "{topic}" in expected:
        ok(broker, "topics", "create", name)
        ok(broker, "produce", name, stdin="1\n")
        ok(broker, "consume", name, "--until-end", "--group", f"{topic}-group")
    *before, last = (word.format(topic=topic) for word in words)
    monkeypatch.setenv("PYLOGD_BOOTSTRAP_SERVER", broker.address)
    found = BashComplete(pylogd, {}, "pylogd", "_PYLOGD_COMPLETE").get_completions(before, last)
    assert [one.value for one in found] == [expected.format(topic=topic)]


def test_a_shell_asks_the_command_itself(broker: Address, topic: str) -> None:
    ok(broker, "topics", "create", topic)
    words = f"pylogd topics describe -b {broker.address} {topic[:-1]}"
    done = subprocess.run(
        pylogd_command(), capture_output=True, text=True, timeout=SECONDS, check=False,
        env={**os.environ, "_PYLOGD_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "5"},
    )  # fmt: skip
    assert f"plain,{topic}" in done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed(broker: Address, shell: str) -> None:
    script = ok(broker, "completion", shell)
    assert "_PYLOGD_COMPLETE" in script and f"{shell}_complete" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=SECONDS)
