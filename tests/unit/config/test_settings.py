"""Settings: values, layers, files, and the messages for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.config import (
    SETTINGS,
    TOPIC_SETTINGS,
    ConfigError,
    ConfigSource,
    ConfigType,
    Mode,
    Setting,
    Settings,
    parse_assignments,
)
from pylogd.config.metadata_store import store_file
from pylogd.config.values import LONG_MAX

ALL = [*SETTINGS.values(), *TOPIC_SETTINGS.values()]
#: Settings of topics for tiered storage and share groups, which brokers accept only.
WITHOUT_EFFECT = {
    "errors.deadletterqueue.group.enable", "local.retention.bytes", "local.retention.ms", "remote.copy.lag.bytes",
    "remote.copy.lag.ms", "remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable",
}  # fmt: skip


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_every_default_is_one_of_its_own_values(setting: Setting) -> None:
    assert setting.parse(setting.default) == setting.default
    assert setting.parse(setting.format(setting.default)) == setting.default
    assert setting.doc.endswith((".", ")"))
    assert setting.allowed


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_every_synonym_is_a_broker_setting_of_the_same_nature(setting: Setting) -> None:
    for name, factor in setting.synonyms:
        assert factor >= 1
        assert (SETTINGS[name].type is setting.type) or factor > 1
    if setting.name in TOPIC_SETTINGS and setting.group == "Topic":
        assert setting.default is not None or setting.internal
        alone = setting.name in ("placement.label", "coordinator.labels") or setting.name in WITHOUT_EFFECT
        assert alone or SETTINGS[setting.synonyms[0][0]].mode is Mode.DYNAMIC


def test_defaults_that_clients_know() -> None:
    """Kafka's defaults, from its documentation."""
    settings = Settings()
    assert settings["message.max.bytes"] == 1_048_588
    assert settings["log.retention.ms"] == 7 * 24 * 3_600_000
    assert settings["log.roll.ms"] == 7 * 24 * 3_600_000
    assert settings["log.flush.interval.ms"] == LONG_MAX
    assert settings.topic_config({})["retention.ms"] == 604_800_000
    assert settings.topic_config({})["cleanup.policy"] == ("delete",)
    assert settings.topic_config({})["min.cleanable.dirty.ratio"] == 0.5


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("node.id", "7", 7),
        ("node.id", " 7 ", 7),
        ("node.id", 7, 7),
        ("log.retention.bytes", "-1", -1),
        ("auto.create.topics.enable", "FALSE", False),
        ("auto.create.topics.enable", True, True),
        ("log.cleaner.min.cleanable.ratio", "0.25", 0.25),
        ("log.cleaner.min.cleanable.ratio", 1, 1.0),
        ("log.cleanup.policy", "compact, delete", ("compact", "delete")),
        ("log.cleanup.policy", ["compact"], ("compact",)),
        ("log.dirs", "/a,/b", ("/a", "/b")),
        ("compression.type", "zstd", "zstd"),
        ("log.retention.minutes", None, None),
    ],
)
def test_values_are_read_from_text_and_from_toml(name: str, raw: object, value: object) -> None:
    parsed = SETTINGS[name].parse(raw)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("node.id", "-1"),
        ("node.id", "seven"),
        ("node.id", "1.0"),
        ("node.id", 1.0),
        ("node.id", True),
        ("node.id", None),
        ("node.id", "-+1"),
        ("node.id", "\u0661"),
        ("node.id", "9" * 5000),
        ("log.segment.bytes", 2**31),
        ("auto.create.topics.enable", "yes"),
        ("auto.create.topics.enable", 1),
        ("log.cleaner.min.cleanable.ratio", "nan"),
        ("log.cleaner.min.cleanable.ratio", 1.5),
        ("log.cleaner.min.cleanable.ratio", "half"),
        ("log.cleanup.policy", "delete,shred"),
        ("log.cleanup.policy", 3),
        ("log.cleanup.policy", [1]),
        ("log.dirs", "/a,,/b"),
        ("log.dirs", []),
        ("log.dirs", ["/a", "/a/"]),
        ("compression.type", "lzma"),
        ("broker.rack", 5),
        ("listeners", ""),
        ("listeners", "nowhere"),
        ("metadata.store", "zookeeper://a"),
        ("metadata.store", "sqlite:"),
        ("advertised.listeners", "EXTERNAL://a:1"),
    ],
)
def test_bad_values_are_refused_in_one_line(name: str, raw: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings({name: raw})
    assert caught.value.setting == name
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@given(st.sampled_from(ALL), st.text() | st.integers() | st.floats() | st.booleans() | st.none() | st.lists(st.text()))
def test_any_value_is_parsed_or_refused(setting: Setting, raw: object) -> None:
    try:
        value = setting.parse(raw)
    except ConfigError:
        return
    assert setting.parse(setting.format(value)) == value


@pytest.mark.parametrize(
    ("name", "hint"),
    [("log.segment.byte", "log.segment.bytes"), ("broker.id", "node.id"), ("log.dir", "log.dirs"), ("zzz", None)],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str | None) -> None:
    with pytest.raises(ConfigError, match="unknown setting") as caught:
        Settings(None, {name: "1"})
    assert (f"did you mean {hint}?" in str(caught.value)) == (hint is not None)


def test_an_unset_setting_takes_the_coarser_one() -> None:
    assert Settings({"log.retention.hours": 1})["log.retention.ms"] == 3_600_000
    assert Settings({"log.retention.hours": 1, "log.retention.minutes": 2})["log.retention.ms"] == 120_000
    assert Settings({"log.retention.minutes": 2, "log.retention.ms": 3})["log.retention.ms"] == 3
    assert Settings({"log.retention.hours": -1}).topic_config({})["retention.ms"] == -1


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pylogd.toml"
    file.write_text('node.id = 3\n"log.segment.bytes" = 1500000\n[log.retention]\nbytes = 5\n')
    settings = Settings.load(file, {"log.segment.bytes": "2500000"})
    assert (settings["node.id"], settings["log.segment.bytes"], settings["log.retention.bytes"]) == (3, 2500000, 5)
    assert settings.origin("log.segment.bytes") == "command line"
    assert settings.origin("node.id") == "configuration file"
    assert settings.origin("num.partitions") == "default"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node.id = ", "not valid TOML"),
        ('max.connections = 5\nmax.connections.per.ip = 2\n"x" = 1', "not valid TOML"),
        ('"node.id" = 1\n[node]\nid = 2\n', "set twice"),
        ("node.name = 1", "unknown setting"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "pylogd.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        Settings.load(file)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Settings.load(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        Settings.load(tmp_path / "binary.toml")


def test_assignments_of_the_command_line() -> None:
    assert parse_assignments(["a.b=1", "c=x=y", "a.b= 2 "]) == {"a.b": "2", "c": "x=y"}
    for word in ("a.b", "=1", " = "):
        with pytest.raises(ConfigError, match="NAME=VALUE"):
            parse_assignments([word])


def test_typed_access() -> None:
    settings = Settings({"log.dirs": ["/a"]})
    assert settings.integer("num.partitions") == 1
    assert settings.number("log.cleaner.min.cleanable.ratio") == 0.5
    assert settings.flag("delete.topic.enable") is True
    assert settings.text("broker.rack") is None
    assert settings.words("log.dirs") == ("/a",)
    assert settings.words("advertised.listeners") == ()
    assert store_file(settings) == Path("/a/metadata.sqlite")
    assert store_file(Settings({"metadata.store": "sqlite:/b/c"})) == Path("/b/c")
    with pytest.raises(KeyError):
        settings["no.such.setting"]
    assert list(settings) == list(SETTINGS)


# -- topics


def test_topic_overrides_are_checked_and_spelled_canonically() -> None:
    settings = Settings()
    checked = settings.check_topic({"retention.ms": " 5", "cleanup.policy": "compact, delete", "preallocate": "TRUE"})
    assert checked == {"retention.ms": "5", "cleanup.policy": "compact,delete", "preallocate": "true"}
    for overrides in (
        {"retention.mss": "1"},
        {"retention.ms": "x"},
        {"retention.ms": None},
        {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
    ):
        with pytest.raises(ConfigError):
            settings.check_topic(overrides)


def test_topic_values_for_a_log() -> None:
    values = Settings({"log.segment.bytes": 2000000}).log_config_values(
        {"retention.ms": "5", "of.a.later.release": "1"}
    )
    assert set(values) == {name.replace(".", "_") for name in TOPIC_SETTINGS}
    assert (values["segment_bytes"], values["retention_ms"]) == (2000000, 5)


def test_a_topic_is_described_with_sources_and_synonyms() -> None:
    settings = Settings({"log.segment.bytes": 2000000})
    entries = {entry.name: entry for entry in settings.describe_topic({"segment.bytes": "1500000"})}
    assert list(entries) == [name for name in TOPIC_SETTINGS if name != "internal.segment.bytes"]
    segment = entries["segment.bytes"]
    assert (segment.value, segment.source, segment.type) == ("1500000", ConfigSource.TOPIC, ConfigType.INT)
    assert [(s.name, s.value, s.source) for s in segment.synonyms] == [
        ("segment.bytes", "1500000", ConfigSource.TOPIC),
        ("log.segment.bytes", "2000000", ConfigSource.STATIC_BROKER),
        ("log.segment.bytes", "1073741824", ConfigSource.DEFAULT),
    ]
    retention = entries["retention.ms"]
    assert (retention.value, retention.source) == ("604800000", ConfigSource.DEFAULT)
    assert [(s.name, s.value) for s in retention.synonyms] == [("log.retention.hours", "168")]
    assert not any(entry.read_only for entry in entries.values())


# -- dynamic changes


def test_dynamic_settings_win_and_can_be_taken_back() -> None:
    settings = Settings({"log.segment.bytes": 2000000})
    heard: list[frozenset[str]] = []
    forget = settings.subscribe(heard.append)
    assert settings.set_dynamic(
        {"log.segment.bytes": "3000000", "log.retention.ms": "9"}, {"log.segment.bytes": "4000000"}
    )
    assert settings["log.segment.bytes"] == 4000000
    assert settings.topic_config({})["retention.ms"] == 9
    entry = next(entry for entry in settings.describe() if entry.name == "log.segment.bytes")
    assert (entry.value, entry.source) == ("4000000", ConfigSource.DYNAMIC_BROKER)
    assert [synonym.value for synonym in entry.synonyms] == ["4000000", "3000000", "2000000", "1073741824"]
    assert settings.origin("log.segment.bytes") == "changed at run time"
    assert not settings.set_dynamic(
        {"log.segment.bytes": "3000000", "log.retention.ms": "9"}, {"log.segment.bytes": "4000000"}
    )
    forget()
    settings.set_dynamic({}, {})
    assert settings["log.segment.bytes"] == 2000000
    assert heard == [frozenset({"log.segment.bytes", "log.retention.ms"}), frozenset()]


@pytest.mark.parametrize(
    "overrides",
    [
        {"node.id": "2"},
        {"no.such": "2"},
        {"log.segment.bytes": "x"},
        {"log.segment.bytes": None},
    ],
)
def test_bad_dynamic_settings_are_refused(overrides: dict[str, str | None]) -> None:
    with pytest.raises(ConfigError):
        Settings.check_dynamic(overrides)


def test_a_refused_dynamic_change_changes_nothing() -> None:
    settings = Settings()
    with pytest.raises(ConfigError):
        settings.set_dynamic(
            {"log.segment.bytes": "5000000", "log.cleaner.min.compaction.lag.ms": "5"},
            {"log.cleaner.max.compaction.lag.ms": "4"},
        )
    assert settings["log.segment.bytes"] == 1 << 30


class TestReadAgain:
    """The settings file is read again while the broker runs."""

    def load(self, tmp_path: Path, text: str, **overrides: str) -> tuple[Settings, Path]:
        path = tmp_path / "pylogd.toml"
        path.write_text(text)
        return Settings.load(path, overrides), path

    def test_only_what_may_change_at_run_time_does(self, tmp_path: Path) -> None:
        settings, path = self.load(tmp_path, '"message.max.bytes" = 1000\n"num.partitions" = 3\n')
        told: list[frozenset[str]] = []
        settings.subscribe(told.append)
        path.write_text('"message.max.bytes" = 2000\n"num.partitions" = 4\n')
        replaced = settings.replace_static(settings.read_again())
        assert replaced.changed == {"message.max.bytes": (1000, 2000)}
        assert replaced.pending == {"num.partitions": (3, 4)}
        assert told == [frozenset({"message.max.bytes"})]
        assert (settings["message.max.bytes"], settings["num.partitions"]) == (2000, 3)
        assert settings.topic_config({})["max.message.bytes"] == 2000
        assert settings.origin("message.max.bytes") == "configuration file"
        again = settings.replace_static(settings.read_again())
        assert (again.changed, again.pending) == ({}, {"num.partitions": (3, 4)})

    def test_what_is_gone_from_the_file_has_its_default_again(self, tmp_path: Path) -> None:
        settings, path = self.load(tmp_path, '"message.max.bytes" = 1000\n')
        path.write_text("")
        settings.replace_static(settings.read_again())
        assert settings["message.max.bytes"] == SETTINGS["message.max.bytes"].default

    def test_the_command_line_still_wins(self, tmp_path: Path) -> None:
        settings, path = self.load(tmp_path, "", **{"message.max.bytes": "500"})
        path.write_text('"message.max.bytes" = 2000\n')
        assert not settings.replace_static(settings.read_again()).changed
        assert settings["message.max.bytes"] == 500

    def test_dynamic_settings_still_win_and_give_way_to_the_new_ones(self, tmp_path: Path) -> None:
        settings, path = self.load(tmp_path, '"message.max.bytes" = 1000\n')
        settings.set_dynamic({}, {"message.max.bytes": "500"})
        path.write_text('"message.max.bytes" = 2000\n')
        replaced = settings.replace_static(settings.read_again())
        assert not replaced.changed
        assert replaced.overruled == frozenset({"message.max.bytes"})
        assert settings["message.max.bytes"] == 500
        settings.set_dynamic({}, {})
        assert settings["message.max.bytes"] == 2000

    @pytest.mark.parametrize(
        "text", ['"message.max.bytes" = "soon"', "not TOML", '"log.cleaner.min.compaction.lag.ms" = 5000']
    )
    def test_what_is_wrong_changes_nothing(self, tmp_path: Path, text: str) -> None:
        settings, path = self.load(tmp_path, '"message.max.bytes" = 1000\n')
        settings.set_dynamic({}, {"log.cleaner.max.compaction.lag.ms": "100"})
        path.write_text(text)
        with pytest.raises(ConfigError):
            settings.replace_static(settings.read_again())
        assert settings["message.max.bytes"] == 1000
        assert settings["log.cleaner.min.compaction.lag.ms"] == 0

    def test_a_file_that_is_gone_changes_nothing(self, tmp_path: Path) -> None:
        settings, path = self.load(tmp_path, '"message.max.bytes" = 1000\n')
        path.unlink()
        with pytest.raises(ConfigError):
            settings.read_again()


def test_a_broker_is_described_whole() -> None:
    entries = {entry.name: entry for entry in Settings({"num.partitions": 4}).describe()}
    assert list(entries) == [name for name, setting in SETTINGS.items() if not setting.internal]
    assert (entries["num.partitions"].value, entries["num.partitions"].source) == ("4", ConfigSource.STATIC_BROKER)
    assert entries["num.partitions"].read_only
    assert (entries["log.retention.ms"].value, entries["log.retention.ms"].source) == (None, ConfigSource.DEFAULT)


def test_a_password_is_never_shown() -> None:
    secret = Setting("key.password", ConfigType.PASSWORD, None, "A secret.", nullable=True)
    assert secret.sensitive
    with pytest.raises(ConfigError) as caught:
        secret.parse(["hunter2"])
    assert "hunter2" not in str(caught.value)
