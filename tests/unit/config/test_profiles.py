"""Profiles: ready sets of settings between the defaults and what an operator sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylogd.broker.process.options import load_settings
from pylogd.broker.tap import Options
from pylogd.config import PROFILES, SETTINGS, ConfigError, ConfigSource, Profile, Settings

EACH = pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)


@EACH
def test_every_value_is_one_that_the_setting_takes(profile: Profile) -> None:
    settings = Settings(None, {"broker.profile": profile.name})
    assert len(profile.values) == len(profile.choices)
    for name, value, why in profile.choices:
        assert settings[name] == SETTINGS[name].parse(value)
        assert settings.origin(name) == f"profile {profile.name}"
        assert why.endswith(".")
    others = set(settings) - profile.values.keys() - {"broker.profile"} - _following(profile)
    assert {name: settings[name] for name in others} == {name: Settings()[name] for name in others}


def _following(profile: Profile) -> set[str]:
    """Return the settings that take their values from one that the profile sets."""
    return {setting.name for setting in SETTINGS.values() for name, _ in setting.synonyms if name in profile.values}


@EACH
def test_a_profile_differs_from_the_defaults(profile: Profile) -> None:
    differing = [name for name, value, _ in profile.choices if SETTINGS[name].parse(value) != SETTINGS[name].default]
    assert len(differing) >= 8


def test_what_an_operator_sets_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "pylogd.toml"
    file.write_text('"broker.profile" = "logs"\n"log.retention.ms" = 5\n"num.partitions" = 7\n')
    settings = load_settings(file, assignments=["min.insync.replicas=2"])
    assert settings.integer("log.retention.ms") == 5, "though the profile sets log.retention.hours"
    assert [settings.integer(name) for name in ("num.partitions", "min.insync.replicas")] == [7, 2]
    assert settings.flag("unclean.leader.election.enable")
    assert settings.topic_config({})["unclean.leader.election.enable"] is True
    names = ("num.partitions", "min.insync.replicas", "unclean.leader.election.enable", "node.id")
    assert [settings.origin(name) for name in names] == [
        "configuration file",
        "command line",
        "profile logs",
        "default",
    ]
    settings.set_dynamic({"unclean.leader.election.enable": "false"}, {})
    assert not settings.flag("unclean.leader.election.enable")
    (entry,) = [one for one in settings.describe() if one.name == "unclean.leader.election.enable"]
    shown = [(one.source, one.value) for one in entry.synonyms]
    assert shown == [
        (ConfigSource.DYNAMIC_DEFAULT_BROKER, "false"),
        (ConfigSource.STATIC_BROKER, "true"),
        (ConfigSource.DEFAULT, "false"),
    ]
    settings.set_dynamic({}, {})
    assert settings.flag("unclean.leader.election.enable")


def test_a_value_of_the_profile_returns_when_the_file_no_longer_sets_it(tmp_path: Path) -> None:
    file = tmp_path / "pylogd.toml"
    file.write_text('"min.insync.replicas" = 3\n')
    settings = load_settings(file, profile="online")
    assert settings.integer("min.insync.replicas") == 3
    file.write_text('"broker.profile" = "logs"\n')
    replaced = settings.replace_static(settings.read_again())
    assert settings.integer("min.insync.replicas") == 2
    assert replaced.changed == {"min.insync.replicas": (3, 2)}
    assert settings.text("broker.profile") == "online", "the command line comes before the file"


def test_another_profile_waits_for_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "pylogd.toml"
    file.write_text('"broker.profile" = "online"\n')
    settings = load_settings(file)
    file.write_text('"broker.profile" = "logs"\n')
    replaced = settings.replace_static(settings.read_again())
    assert replaced.changed == {}
    assert replaced.pending["broker.profile"] == ("online", "logs")
    assert settings.integer("min.insync.replicas") == 2


def test_the_option_of_both_commands(tmp_path: Path) -> None:
    assert load_settings(None, profile="offline").integer("background.threads") == 20
    options = Options()
    options.parseOptions(["--profile", "offline"])
    assert options.settings().integer("background.threads") == 20


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r'broker.profile = "fast" is not allowed.*logs, online.*offline'):
        load_settings(None, profile="fast")
