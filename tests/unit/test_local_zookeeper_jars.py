"""Where the jars of a local ZooKeeper server are found, in which order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pylogd.local import zookeeper
from pylogd.local.zookeeper import ZooKeeperUnavailable, find_jars


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without ZooKeeper; packages may be added to the folder that is returned."""
    for name in ("ZOOKEEPER_HOME", "KAFKA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(zookeeper, "_DEBIAN", tmp_path / "debian")
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.setattr(sys, "path", [str(packages)])
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    return packages


def add_package(packages: Path, name: str, *jars: str) -> None:
    touch(packages / name, "__init__.py")
    touch(packages / name / "jars", *jars)
    sys.path_importer_cache.clear()


def test_without_any_the_error_says_what_to_install() -> None:
    with pytest.raises(ZooKeeperUnavailable, match=r"pylogd-broker\[zookeeper\]"):
        find_jars()


def test_the_order(tmp_path: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_package(nowhere, "pyspark", "zookeeper-3.9.5.jar", "spark-core.jar")
    assert find_jars() == [str(nowhere / "pyspark/jars/zookeeper-3.9.5.jar")]

    kafka = tmp_path / "kafka"
    touch(kafka / "libs", "kafka-clients-3.9.1.jar", "zookeeper-3.8.4.jar", "reload4j-1.2.25.jar")
    monkeypatch.setenv("KAFKA_HOME", str(kafka))
    assert [Path(jar).name for jar in find_jars()] == ["zookeeper-3.8.4.jar", "reload4j-1.2.25.jar"]

    touch(tmp_path / "debian", "zookeeper.jar", "zookeeper-jute.jar")
    assert find_jars()[0] == str(tmp_path / "debian/zookeeper.jar")

    add_package(nowhere, "pylogd_zookeeper", "slf4j-api-2.0.13.jar", "zookeeper-3.9.5.jar")
    assert [Path(jar).parent.parent.name for jar in find_jars()] == ["pylogd_zookeeper"] * 2

    touch(tmp_path / "home/lib", "zookeeper-3.9.3.jar")
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path / "home"))
    assert find_jars() == [str(tmp_path / "home/lib/zookeeper-3.9.3.jar")]


def test_kafka_without_zookeeper_is_passed_over(tmp_path: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "kafka/libs", "kafka-clients-4.3.1.jar", "slf4j-api-2.0.17.jar")
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path / "kafka"))
    add_package(nowhere, "pyspark", "zookeeper-3.9.5.jar")
    assert [Path(jar).name for jar in find_jars()] == ["zookeeper-3.9.5.jar"]
