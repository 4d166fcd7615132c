"""Listener addresses in their three notations."""

from __future__ import annotations

import pytest
from twisted.internet.endpoints import serverFromString
from twisted.internet.testing import MemoryReactor

from pylogd.config import ConfigError, Listener, SecurityProtocol, Settings, parse_listeners
from pylogd.config.listeners import parse_protocols

MAP = "IN:PLAINTEXT,OUT:SSL,INNER:PLAINTEXT,EXTERNAL:PLAINTEXT,PLAINTEXT:PLAINTEXT"


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
    assert parse_listeners([text], parse_protocols(MAP.split(","))) == (listener,)


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
        ["EXTERNAL://a:1"],
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
    names = [listener.name for listener in parse_listeners(["a:1", "SSL://a:2", "a:3", "a:4", "a:0", "a:0"])]
    assert names == ["PLAINTEXT", "SSL", "PLAINTEXT2", "PLAINTEXT3", "PLAINTEXT4", "PLAINTEXT5"]


def test_only_this_machine_can_connect_unless_told_otherwise() -> None:
    (listener,) = Settings().listeners
    assert (str(listener), listener.endpoint) == ("PLAINTEXT://127.0.0.1:9092", "tcp:9092:interface=127.0.0.1")


def test_wildcards() -> None:
    wild = parse_listeners([":1", "0.0.0.0:2", "[::]:3"])
    assert all(listener.wildcard for listener in wild)
    assert str(wild[2]) == "PLAINTEXT3://[::]:3"


def test_advertised_listeners_are_matched_by_name_or_place() -> None:
    two = {"listeners": "IN://:1,OUT://:2", "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT"}
    settings = Settings({**two, "advertised.listeners": "OUT://kafka.example:19092"})
    assert settings.advertised_listeners == (Listener("OUT", "kafka.example", 19092),)
    settings = Settings({**two, "advertised.listeners": "a:5,b:6"})
    assert [str(listener) for listener in settings.advertised_listeners] == ["IN://a:5", "OUT://b:6"]
    assert Settings().advertised_listeners == ()


@pytest.mark.parametrize("text", ["0.0.0.0:1", ":1", "OTHER://a:1", "a:1,b:2"])
def test_what_cannot_be_advertised_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Settings({"advertised.listeners": text})


def test_protocols_come_from_the_map() -> None:
    listeners = parse_listeners(["in://:1", "SASL_SSL://:2", ":3"], parse_protocols(["IN:SSL", "SASL_SSL:SASL_SSL"]))
    assert [one.protocol for one in listeners] == [
        SecurityProtocol.SSL, SecurityProtocol.SASL_SSL, SecurityProtocol.PLAINTEXT,
    ]  # fmt: skip
    assert [(one.protocol.tls, one.protocol.sasl) for one in listeners] == [(True, False), (True, True), (False, False)]


@pytest.mark.parametrize("text", ["IN", "IN:TLS", ":SSL", "IN:SSL,in:PLAINTEXT"])
def test_what_is_no_map_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"listener\.security\.protocol\.map"):
        Settings({"listener.security.protocol.map": text})


@pytest.mark.parametrize(
    ("text", "exposed"),
    [
        ("127.0.0.1:1", False), ("localhost:1", False), ("[::1]:1", False), ("127.8.8.8:1", False),
        (":1", True), ("0.0.0.0:1", True), ("[::]:1", True), ("10.0.0.1:1", True), ("kafka.example:1", True),
        ("tcp:9092", True), ("tcp:9092:interface=127.0.0.1", False), ("unix:/tmp/socket", False),
    ],
)  # fmt: skip
def test_which_listeners_others_can_reach(text: str, exposed: bool) -> None:
    (listener,) = parse_listeners([text])
    assert listener.exposed is exposed


def test_the_default_is_for_this_machine_only() -> None:
    (listener,) = Settings().listeners
    assert not listener.exposed


def test_the_listener_between_brokers() -> None:
    two = {"listeners": "SSL://:1,IN://:2", "listener.security.protocol.map": "IN:PLAINTEXT,SSL:SSL",
           "ssl.keystore.location": "/key.pem"}  # fmt: skip
    assert Settings(two).inter_broker_listener.name == "SSL"
    assert Settings({**two, "inter.broker.listener.name": "in"}).inter_broker_listener.port == 2
    assert Settings({**two, "security.inter.broker.protocol": "SSL"}).inter_broker_listener.port == 1


@pytest.mark.parametrize(
    "more",
    [
        {"inter.broker.listener.name": "OTHER"},
        {"security.inter.broker.protocol": "SASL_SSL"},
        {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
    ],
)
def test_a_listener_between_brokers_that_is_not_there(more: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"inter\.broker"):
        Settings(more)
