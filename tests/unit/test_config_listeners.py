"""Listener addresses in their three spellings."""

from __future__ import annotations

import pytest
from twisted.internet.endpoints import serverFromString
from twisted.internet.testing import MemoryReactor

from pylogd.config import ConfigError, Listener, Settings, parse_listeners


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("PLAINTEXT://:9092", Listener("PLAINTEXT", "", 9092, "tcp:9092")),
        ("plaintext://a.b-c:1", Listener("PLAINTEXT", "a.b-c", 1, "tcp:1:interface=a.b-c")),
        ("EXTERNAL://[::1]:9092", Listener("EXTERNAL", "::1", 9092, r"tcp6:9092:interface=\:\:1")),
        ("127.0.0.1:0", Listener("PLAINTEXT", "127.0.0.1", 0, "tcp:0:interface=127.0.0.1")),
        (":9092", Listener("PLAINTEXT", "", 9092, "tcp:9092")),
        ("tcp:9092", Listener("PLAINTEXT", "", 9092, "tcp:9092")),
        (r"tcp6:1:interface=\:\:1", Listener("PLAINTEXT", "::1", 1, r"tcp6:1:interface=\:\:1")),
        (
            "tcp:1:interface=10.0.0.1:backlog=9",
            Listener("PLAINTEXT", "10.0.0.1", 1, "tcp:1:interface=10.0.0.1:backlog=9"),
        ),
        ("systemd:domain=INET:index=0", Listener("PLAINTEXT", "", 0, "systemd:domain=INET:index=0")),
    ],
)
def test_spellings(text: str, listener: Listener) -> None:
    assert parse_listeners([text]) == (listener,)


@pytest.mark.parametrize("text", ["a:1", "[::1]:0", "PLAINTEXT://:9092", "tcp:5:interface=127.0.0.1"])
def test_twisted_takes_the_endpoint(text: str) -> None:
    (listener,) = parse_listeners([text])
    assert serverFromString(MemoryReactor(), listener.endpoint) is not None


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["here"],
        ["a:b"],
        ["a:65536"],
        ["a:1:2"],
        ["::1:9092"],
        ["tcp:x"],
        ["tcp:70000"],
        ["SSL://a:1"],
        ["SASL_SSL://a:1"],
        ["http://a/b:1"],
        ["A://a:1", "A://a:2"],
        ["a:1", "a:1"],
    ],
)
def test_what_is_no_address_is_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_listeners(texts)
    assert caught.value.setting == "listeners"


def test_unnamed_listeners_get_names() -> None:
    names = [listener.name for listener in parse_listeners(["a:1", "INNER://a:2", "a:3", "a:4", "a:0", "a:0"])]
    assert names == ["PLAINTEXT", "INNER", "PLAINTEXT2", "PLAINTEXT3", "PLAINTEXT4", "PLAINTEXT5"]


def test_wildcards() -> None:
    wild = parse_listeners([":1", "0.0.0.0:2", "[::]:3"])
    assert all(listener.wildcard for listener in wild)
    assert str(wild[2]) == "PLAINTEXT3://[::]:3"


def test_advertised_listeners_are_matched_by_name_or_place() -> None:
    settings = Settings({"listeners": "IN://:1,OUT://:2", "advertised.listeners": "OUT://kafka.example:19092"})
    assert settings.advertised_listeners == (Listener("OUT", "kafka.example", 19092),)
    settings = Settings({"listeners": "IN://:1,OUT://:2", "advertised.listeners": "a:5,b:6"})
    assert [str(listener) for listener in settings.advertised_listeners] == ["IN://a:5", "OUT://b:6"]
    assert Settings().advertised_listeners == ()


@pytest.mark.parametrize("text", ["0.0.0.0:1", ":1", "OTHER://a:1", "a:1,b:2"])
def test_what_cannot_be_advertised_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Settings({"advertised.listeners": text})
