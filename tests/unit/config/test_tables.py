"""The generated tables, pages and example file agree with the tables of settings; every setting is used."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pylogd
from pylogd.config import GROUP_SETTINGS, SETTINGS, TOPIC_SETTINGS, SecurityProtocol, Settings
from pylogd.config.client_metrics import ATTRIBUTES, MATCH
from pylogd.config.tables import BOUNDS, CLIENT_METRICS_SETTINGS
from tests.tools import tool

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return tool("generate_settings_doc")


def test_the_tables_are_current() -> None:
    tables = tool("generate_settings")
    assert tables.TABLES.read_text(encoding="utf-8") == tables.render()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"type": "int", "doc": "A.", "minumum": 1}, "unknown key minumum"),
        ({"type": "integer", "doc": "A."}, "a type that is one of"),
        ({"type": "int"}, "needs a doc"),
        ({"type": "int", "doc": "A.", "mode": "dynamic"}, "mode is not one of read-only, cluster-wide, per-broker"),
        ({"type": "int", "doc": "A.", "default": "5 min"}, "not a number with one of the units KiB"),
    ],
)
def test_a_mistake_in_a_table_is_found(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(SystemExit, match=f"some.bytes: .*{message}"):
        tool("generate_settings").own("some.bytes", "Log", keys)


def test_the_tables_name_what_the_code_has() -> None:
    protocols = [protocol.value for protocol in SecurityProtocol]
    assert SETTINGS["listener.security.protocol.map"].default == tuple(f"{name}:{name}" for name in protocols)
    assert SETTINGS["security.inter.broker.protocol"].choices == tuple(protocols)
    assert f"Attributes: {', '.join(ATTRIBUTES)}." in CLIENT_METRICS_SETTINGS[MATCH].doc


def test_the_reference_is_current(generator: ModuleType) -> None:
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == generator.manual()


def test_the_page_of_profiles_is_current(generator: ModuleType) -> None:
    assert (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8") == generator.profiles()


def test_the_example_is_current(generator: ModuleType) -> None:
    assert (ROOT / "etc" / "pylogd.toml").read_text(encoding="utf-8") == generator.example()


def test_the_example_as_it_is_sets_nothing() -> None:
    assert tomllib.loads((ROOT / "etc" / "pylogd.toml").read_text(encoding="utf-8")) == {}


def test_the_example_with_its_comments_taken_off_is_the_defaults(tmp_path: Path) -> None:
    text = (ROOT / "etc" / "pylogd.toml").read_text(encoding="utf-8")
    names = re.findall(r'^#"(.+?)" = ', text, re.MULTILINE)
    assert names == [name for name, setting in SETTINGS.items() if not setting.internal]
    file = tmp_path / "pylogd.toml"
    file.write_text(re.sub(r'^#(?=".+" = (?!\.\.\.))', "", text, flags=re.MULTILINE), encoding="utf-8")
    loaded, shipped = Settings.load(file), Settings()
    assert {name: loaded[name] for name in loaded} == {name: shipped[name] for name in shipped}


#: Settings that are accepted without effect, so that tools that set them work.
FOR_COMPATIBILITY = {
    "log.preallocate",  # the reference says so
    "unclean.leader.election.enable",  # a single broker has no replica to prefer
}


def test_every_setting_is_used() -> None:
    package = Path(pylogd.__file__).parent
    sources = [path for path in package.rglob("*.py") if "config" not in path.relative_to(package).parts]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    read = {name for name in SETTINGS if re.search(rf"""["']{name}["']""", text)} | FOR_COMPATIBILITY
    for setting in TOPIC_SETTINGS.values():
        if f'"{setting.name}"' in text or re.search(rf"\b{setting.attribute}\b", text):
            read.update(name for name, _ in setting.synonyms)
    read |= {name for setting in GROUP_SETTINGS.values() for name, _ in setting.synonyms}
    read |= {name for bounds in BOUNDS.values() for name in bounds}
    read |= {"log.dirs", "metadata.store", "listeners", "advertised.listeners"}  # read through properties of Settings
    read |= {name for name in SETTINGS if name.startswith(("zookeeper.ssl.", "zookeeper.sasl.", "zookeeper.auth."))}
    read |= {"zookeeper.set.acl", "listener.security.protocol.map", "inter.broker.listener.name"}
    read |= {"security.inter.broker.protocol", "ignored.dynamic.settings", "broker.profile"}
    read |= {name for name in SETTINGS if name.startswith("ssl.")}  # read in pylogd.config.tls
    assert sorted(SETTINGS.keys() - read) == []
