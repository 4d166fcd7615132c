"""Lines in, lines out, against a broker in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages import ApiKey
from pylogd.wire.records import encode_batch, parse_header
from tests.fakes.broker import FakeBroker
from tests.fakes.group_broker import GroupBroker, fill
from tests.unit.cli.helpers import Outcome, pylogd_process

T = 1_700_000_000_000


@pytest.fixture
def server() -> Iterator[FakeBroker]:
    with FakeBroker() as server:
        yield server


def run(server: FakeBroker, *arguments: str, stdin: bytes = b"") -> Outcome:
    return pylogd_process([*arguments, "--bootstrap-server", server.address], stdin)


class TestProduce:
    def test_lines(self, server: FakeBroker) -> None:
        result = run(server, "produce", "t", stdin=b"one\n\ntwo\r\nlast without an end")
        assert (result.code, result.out, result.err) == (0, b"", "")
        assert [r.value for r in server.stored()] == [b"one", b"", b"two\r", b"last without an end"]
        assert all(r.key is None and r.timestamp > T for r in server.stored())

    def test_no_input_sends_nothing(self, server: FakeBroker) -> None:
        assert run(server, "produce", "t").code == 0
        assert not server.asked(ApiKey.PRODUCE)

    def test_keys_headers_and_delete_markers(self, server: FakeBroker) -> None:
        result = run(
            server, "produce", "t", "-K", "::", "-H", "from=test", "--null-value", "NULL", "-z", "zstd",
            stdin=b"k1::v::1\nno key\nk2::NULL\n::v\n",
        )  # fmt: skip
        assert result.code == 0
        assert [(r.key, r.value) for r in server.stored()] == [
            (b"k1", b"v::1"), (None, b"no key"), (b"k2", None), (b"", b"v"),
        ]  # fmt: skip
        assert server.stored()[0].headers == (("from", b"test"),)
        assert parse_header(server.logs[0][0]).compression == 4

    def test_files(self, server: FakeBroker, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"1\n2\n")
        (tmp_path / "b").write_bytes(b"3")
        assert run(server, "produce", "t", str(tmp_path / "a"), "-", str(tmp_path / "b"), stdin=b"x\n").code == 0
        assert [r.value for r in server.stored()] == [b"1", b"2", b"x", b"3"]
        assert run(server, "produce", "t", str(tmp_path / "none")).code == 2

    def test_refusal(self, server: FakeBroker) -> None:
        def refuse(request: object) -> object:
            response = server._produce(request)  # type: ignore[arg-type]
            assert response is not None
            response.responses[0].partition_responses[0].error_code = ErrorCode.MESSAGE_TOO_LARGE
            return response

        server.on(ApiKey.PRODUCE, refuse)
        result = run(server, "produce", "t", stdin=b"one\n")
        assert result.code == 1
        assert result.err.startswith("Error: ") and "MESSAGE_TOO_LARGE" in result.err
        assert "Traceback" not in result.err

    @pytest.mark.parametrize("arguments", [["-k", "a", "-K", ":"], ["-H", "nonsense"], ["-a", "2"], ["--rate", "0"]])
    def test_wrong_usage(self, server: FakeBroker, arguments: list[str]) -> None:
        assert run(server, "produce", "t", *arguments).code == 2

    def test_rate(self, server: FakeBroker) -> None:
        assert run(server, "produce", "t", "--rate", "100000", stdin=b"1\n2\n3\n").code == 0
        assert len(server.stored()) == 3


class TestConsume:
    @pytest.fixture(autouse=True)
    def records(self, server: FakeBroker) -> None:
        records = [
            (b"k1", b"v1", T, [("h", b"\xff"), ("n", None)]),
            (None, "grün".encode(), T + 1000, ()),
            (b"\xfe", None, T + 2000, ()),
        ]
        server.append(0, encode_batch(records))
        server.append(0, encode_batch([(None, b"v4", T + 3000, ())]))

    def test_plain(self, server: FakeBroker) -> None:
        result = run(server, "consume", "t", "--until-end")
        assert (result.code, result.err) == (0, "")
        assert result.out == "v1\ngrün\n\nv4\n".encode()

    def test_the_rack_goes_to_the_broker(self, server: FakeBroker) -> None:
        assert run(server, "consume", "t", "--until-end", "--rack", "east").code == 0
        fetches = server.asked(ApiKey.FETCH)
        assert fetches and {fetch.rack_id for fetch in fetches} == {"east"}

    def test_key_value(self, server: FakeBroker) -> None:
        result = run(server, "consume", "t", "--until-end", "-o", "key-value", "-K", "=")
        assert result.out == b"k1=v1\n=gr\xc3\xbcn\n\xfe=\n=v4\n"

    def test_json(self, server: FakeBroker) -> None:
        found = [json.loads(line) for line in run(server, "consume", "t", "-n", "3", "-o", "json").out.splitlines()]
        assert [(r["topic"], r["partition"], r["offset"], r["timestamp"]) for r in found] == [
            ("t", 0, 0, T), ("t", 0, 1, T + 1000), ("t", 0, 2, T + 2000),
        ]  # fmt: skip
        assert found[0]["key"] == "k1" and found[1]["key"] is None and found[2]["key_base64"] == "/g=="
        assert found[0]["headers"] == [{"name": "h", "value_base64": "/w=="}, {"name": "n", "value": None}]
        assert [r.get("value") for r in found] == ["v1", "grün", None]

    @pytest.mark.parametrize(
        ("start", "first"),
        [("beginning", 0), ("1", 1), ("-1", 3), ("-99", 0), ("end", None), ("@1700000003", 3), ("99", None),
         ("2100-01-01", None), ("1d", None)],
    )  # fmt: skip
    def test_from(self, server: FakeBroker, start: str, first: int | None) -> None:
        result = run(server, "consume", "t", "--until-end", "--from", start, "-o", "json")
        assert result.code == 0
        offsets = [json.loads(line)["offset"] for line in result.out.splitlines()]
        assert offsets == ([] if first is None else list(range(first, 4)))

    def test_count_and_timeout(self, server: FakeBroker) -> None:
        assert run(server, "consume", "t", "--count", "2").out == "v1\ngrün\n".encode()
        assert run(server, "consume", "t", "--timeout", "0.1", "--from", "-1").out == b"v4\n"

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (["nosuch"], 1, "no topic 'nosuch'"),
            (["t", "-p", "7"], 1, "no partition 7"),
            (["t", "--from", "somewhere"], 2, "use beginning, end, an offset, -N, or a time"),
            (["t", "-n", "0"], 2, "Usage"),
        ],
    )
    def test_errors(self, server: FakeBroker, arguments: list[str], code: int, message: str) -> None:
        result = run(server, "consume", *arguments)
        assert result.code == code and message in result.err and not result.out

    def test_damage(self, server: FakeBroker) -> None:
        damaged = bytearray(server.logs[0][1])
        damaged[-1] ^= 1
        server.logs[0][1] = bytes(damaged)
        result = run(server, "consume", "t")
        assert result.code == 1 and "t-0: at offset 3" in result.err
        assert result.out == "v1\ngrün\n\n".encode()


class TestConsumeInAGroup:
    @pytest.mark.parametrize("protocol", [None, "classic", "consumer"])
    @pytest.mark.parametrize("in_file", ["classic", "consumer"])
    def test_protocols(self, tmp_path: Path, protocol: str | None, in_file: str) -> None:
        config = tmp_path / "consumer.properties"
        config.write_text(f"group.protocol={in_file}\n" + "group.remote.assignor=range\n")
        chosen = [] if protocol is None else ["--group-protocol", protocol]
        with GroupBroker() as server:
            fill(server, 0, 3)
            arguments = ["consume", "t", "-g", "g", "--until-end", *chosen, "--command-config", str(config)]
            result = run(server, *arguments)
            assert (result.code, result.out, result.err) == (0, b"0-0\n0-1\n0-2\n", "")
            joined = {request.server_assignor for request in server.asked(ApiKey.CONSUMER_GROUP_HEARTBEAT)}
            assert bool(server.asked(ApiKey.JOIN_GROUP)) == ((protocol or in_file) == "classic")
            assert ("range" in joined) == ((protocol or in_file) == "consumer")
