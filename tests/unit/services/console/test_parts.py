"""The console's smaller parts: masking, lists, decoding, searches, configuration, figures, packaged files."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from pylogd.services.console import configuration
from pylogd.services.console.answers import Refused
from pylogd.services.console.configuration import BadConfiguration
from pylogd.services.console.decoding import Decoded, Decoder, plain
from pylogd.services.console.listing import Column, Listing
from pylogd.services.console.masking import MASK, Masking, MaskingRule
from pylogd.services.console.oidc import read_options
from pylogd.services.console.reading import Message, Wanted, parse_time
from pylogd.services.console.rendering import duration, rate, size, sparkline
from pylogd.services.console.roles import Identity, Role
from pylogd.services.console.sampler import Figures
from pylogd.services.console.sessions import IDLE_SECONDS, Sessions
from pylogd.services.console.tables import TableOptions
from pylogd.services.console.view import load_static_files
from tests.docs.kinds import blocks_of_kind

RULES = Masking([MaskingRule("pay.*", ("card.number", "iban")), MaskingRule("secret")])


@pytest.mark.parametrize(
    ("topic", "value", "shown"),
    [
        ("pay.eu", {"card": {"number": "4111", "type": "x"}, "iban": None},
         {"card": {"number": MASK, "type": "x"}, "iban": MASK}),
        ("pay.eu", {"card": {"number": "4111", "type": "x"}}, MASK),
        ("pay.eu", {"card": {"pan": "4111"}, "iban": "DE"}, {"card": MASK, "iban": MASK}),
        ("pay.eu", {"card": [{"number": 1}, {"pan": 2}, None], "iban": "DE"},
         {"card": [{"number": MASK}, MASK, None], "iban": MASK}),
        ("pay.eu", {"card": None, "iban": "DE"}, {"card": None, "iban": MASK}),
        ("pay.eu", {"payload": {"iban": "DE"}}, MASK),
        ("pay.eu", {"card": [{"number": 1}, {"number": 2}], "iban": "DE"},
         {"card": [{"number": MASK}, {"number": MASK}], "iban": MASK}),
        ("pay.eu", {"other": 1}, MASK),
        ("pay.eu", "not decoded: 4111", MASK),
        ("secret", {"a": 1}, MASK),
        ("secret", None, None),
        ("open", {"iban": "DE"}, {"iban": "DE"}),
    ],
)  # fmt: skip
def test_masking(topic: str, value: Any, shown: Any) -> None:
    assert RULES.apply(topic, value) == shown


def test_masking_leaves_the_given_value_alone() -> None:
    value = {"iban": "DE"}
    RULES.apply("pay.eu", value)
    assert value == {"iban": "DE"}


@pytest.mark.parametrize(
    ("data", "kind", "value"),
    [(b'{"a": 1}', "json", {"a": 1}), (b"[1]", "json", [1]), (b"{no", "text", "{no"), (b"text", "text", "text"),
     (b"\xff\x00", "bytes", "ff 00"), (b"\x00\x01", "bytes", "00 01"), ("ä".encode(), "text", "ä"), (b"", "text", ""),
     (b"[" * 100_000, "text", "[" * 100_000)],
)  # fmt: skip
def test_decoding_without_a_registry(data: bytes, kind: str, value: Any) -> None:
    assert plain(data) == Decoded(kind, value)


def test_a_registry_that_does_not_answer_leaves_bytes_and_the_reason() -> None:
    found = Decoder("http://127.0.0.1:9").decode(b"\x00\x00\x00\x00\x07abc")
    assert found.kind == "bytes" and found.note.startswith("schema 7: can't reach")
    assert Decoder().decode(None) == Decoded("null", None)


def message(value: Any = "v", key: Any = "k", **headers: str) -> Message:
    return Message(0, 1, 2, Decoded("text", key), Decoded("json", value), tuple(headers.items()))


@pytest.mark.parametrize(
    ("options", "matches"),
    [
        ({}, True), ({"text": "ADA"}, True), ({"text": "nobody"}, False), ({"text": "trace=7"}, True),
        ({"field": "user.name=ada"}, True), ({"field": "user.name=bob"}, False), ({"field": "user.ids=3"}, True),
        ({"field": "user.none=3"}, False), ({"header": "trace=7"}, True), ({"header": "trace=8"}, False),
    ],
)  # fmt: skip
def test_filters(options: dict[str, str], matches: bool) -> None:
    found = message({"user": {"name": "ada", "ids": [1, 3]}}, trace="7")
    assert Wanted.of("t", options).matches(found) is matches


@pytest.mark.parametrize(
    "options", [{"partition": "x"}, {"count": "0"}, {"count": "501"}, {"count": "-1"}, {"field": "a"}, {"header": "b"}]
)
def test_searches_that_mean_nothing(options: dict[str, str]) -> None:
    with pytest.raises(Refused):
        Wanted.of("t", options)


def test_times() -> None:
    now = 1_800_000_000_000
    assert parse_time("15m", now) == now - 900_000
    assert parse_time("@1795219200", now) == 1_795_219_200_000
    assert parse_time("2026-11-21T08:00", now) == parse_time("2026-11-21T08:00+00:00", now) == 1_795_248_000_000
    for text in ("yesterday", "@x", "99999999999999d", "@" + "9" * 400):
        with pytest.raises(Refused):
            parse_time(text, now)


def test_lists_sort_what_is_not_known_last() -> None:
    columns = {"n": Column("N", lambda one: one[1], largest=True)}
    rows = [("a", 1), ("b", None), ("c", 3), ("d", 2)]

    def names(**options: str) -> str:
        return "".join(one[0] for one in Listing(rows, columns, lambda one: str(one[0]), options).rows)

    assert names() == "cdab" and names(reverse="1") == "adcb" and names(q="A") == "a"


def test_numbers_for_people() -> None:
    assert [size(value) for value in (0, 1023, 1536, 5 << 40)] == ["0 B", "1023 B", "1.5 KiB", "5.0 TiB"]
    assert [rate(value) for value in (0, 0.5, 12, 1500)] == ["0/s", "0.5/s", "12/s", "1.5k/s"]
    assert [duration(value) for value in (0, 0.4, 90, 600, 9000)] == ["0 s", "< 1 s", "90 s", "10 min", "2.5 h"]
    assert "not known" in size(None) and "not known" in rate(None) and "not known" in duration(None)
    assert "<b>" not in sparkline([1, 2], "<b>")


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pylogd.services.console.sessions._MOST", 3)
    sessions = Sessions(lambda: 0.0)
    ids = [sessions.open(user, Role.VIEWER).session_id for user in ("eve", "ada", "eve", "eve")]
    assert len(sessions) == 3 and sessions.find(ids[0]) is None and sessions.find(ids[3]) is not None
    found = sessions.find(ids[1])
    assert found is not None and found.is_mine(found.token) and not found.is_mine("")


def test_a_browser_without_a_login_keeps_its_session_itself() -> None:
    now = 0.0
    sessions = Sessions(lambda: now)
    session = sessions.open("", Role.NONE)
    session.wanted, session.pending = "/c/cluster", {"state": "s"}
    cookie = sessions.cookie(session)
    found = sessions.find(cookie, Role.ADMIN)
    assert found is not None and not len(sessions)
    assert (found.user, found.role, found.token, found.wanted) == ("", Role.ADMIN, session.token, "/c/cluster")
    assert found.pending == {"state": "s"} and sessions.cookie(found) == cookie
    for other in ("~", "~.", cookie[:-1], cookie.replace("~", "~A"), "~é.é", Sessions(lambda: now).cookie(session)):
        assert sessions.find(other) is None
    now = IDLE_SECONDS + 1
    assert sessions.find(cookie) is None


PAGE = """\
# HELP pylogd_build_info Versions
pylogd_build_info{version="1",node="3",python="3.11"} 1.0
pylogd_connections{listener="A"} 4.0
pylogd_connections{listener="B"} 2.0
pylogd_reactor_lag_seconds_bucket{le="0.1"} 10.0
pylogd_reactor_lag_seconds_sum %s
pylogd_reactor_lag_seconds_count %s
"""


def test_figures_of_a_metrics_page() -> None:
    figures = Figures(None, [])
    assert figures.parse(PAGE % (1.0, 100)) == (3, {"connections": 6})
    assert figures.parse(PAGE % (1.5, 200)) == (3, {"connections": 6, "reactor lag": 0.005})
    with pytest.raises(ValueError, match="not a page of a pylogd broker"):
        figures.parse("up 1\n")


def test_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("security.protocol=SSL\nschema.registry.basic.auth.user.info=a:b\n")
    path = tmp_path / "console.toml"
    path.write_text(
        '[clusters.main]\nbootstrap = "a:1,b:2"\ncommand-config = "client.properties"\n'
        'schema-registry = "http://r:1"\nmetrics = ["http://a:9/metrics"]\nlinks = {"Audit" = "https://x/"}\n'
        'mirrors = ["http://m/metrics"]\naudit = "http://audit/"\nzookeeper = "z:2181/x"\n'
        '[clusters.main.tables.flights]\nlocation = "delta:/data"\nproperties = {region = "eu"}\n'
        '[clusters.other]\nbootstrap = "c"\n[[masking]]\ntopics = "pay.*"\nfields = ["iban"]\n'
        '[roles]\nadmin = ["user:ada"]\nothers = "viewer"\n'
    )
    found = configuration.read(path)
    main, other = found.clusters
    assert (main.name, other.name) == ("main", "other") and main.security is not None and main.security.uses_tls
    assert main.registry_settings == {"schema.registry.basic.auth.user.info": "a:b"}
    assert found.masking == [MaskingRule("pay.*", ("iban",))]
    assert (list(main.mirrors), main.audit) == (["http://m/metrics"], "http://audit/")
    assert (main.zookeeper, other.zookeeper) == ("z:2181/x", "")
    assert main.tables == {"flights": TableOptions("delta:/data", {"region": "eu"})} and not other.tables
    assert found.roles is not None
    assert [found.roles.of(Identity(name, "user")) for name in ("ada", "eve")] == [Role.ADMIN, Role.VIEWER]


def test_the_page_s_files_are_read(tmp_path: Path) -> None:
    whole, provider = blocks_of_kind("console")
    for name in ("client.properties", "console.toml"):
        (tmp_path / name).write_text(whole.text if name.endswith("toml") else "")
    assert [one.name for one in configuration.read(tmp_path / "console.toml").clusters] == ["main", "backup"]
    (tmp_path / "oidc.toml").write_text(provider.text)
    assert read_options(tmp_path / "oidc.toml").client_id == "pylogd-console"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "at least one cluster"), ("[clusters.a]\n", "no bootstrap"), ("x = 1\n", "there is no 'x'"),
        ('[clusters.a]\nbootstrap = "b"\nlinks = {a = "javascript:x"}\n', "begin with http"),
        ('[clusters.a]\nbootstrap = "b"\nzookeeper = "a:b:c:d"\n', "clusters.a"),
        ('[clusters.a]\nbootstrap = 1\n', "has to be a str"), ("[", "console.toml"),
        ('[clusters.a]\nbootstrap = "b"\ncommand-config = "none"\n', "can't read"),
        ('[clusters.a]\nbootstrap = "b"\n[[masking]]\nfields = ["x"]\n', "needs `topics`"),
        ('[clusters.a]\nbootstrap = "b"\n[roles]\nadmin = ["ada"]\n', "not a member of a role"),
        ('[clusters.a]\nbootstrap = "b"\n[roles]\nothers = "admin"\n', "one of none, viewer"),
        ('[clusters.a]\nbootstrap = "b"\n[clusters.a.tables.t]\nlocation = "delta:"\n', "names no table"),
        ('[clusters.a]\nbootstrap = "b"\naudit = "file:///etc"\n', "begin with http"),
    ],
)  # fmt: skip
def test_errors_of_a_configuration(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "console.toml"
    path.write_text(text)
    with pytest.raises(BadConfiguration, match=why):
        configuration.read(path)


def test_packaged_files_are_those_of_the_table() -> None:
    folder = files("pylogd.services.console").joinpath("static")
    table = folder.joinpath("README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([^`]+)` .* `([0-9a-f]{64})` \|$", table, re.MULTILINE))
    assert len(rows) == 4
    for name, digest in rows.items():
        assert hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest() == digest, name
    own = {"console.js", "theme.js", "console.css", "icon.svg"}
    assert load_static_files().keys() == {*rows, *own}
