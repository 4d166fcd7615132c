"""What packages/ contains: brokers of the compose file and the chart have good settings, signed releases verify."""

from __future__ import annotations

import configparser
import hashlib
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from pylogd.broker.process import options

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = CHECKOUT / "packages"
BROKERS = 3


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((PACKAGES / "compose" / "compose.yaml").read_text())
    return found


def settings_of(command: list[str]) -> dict[str, str]:
    """Return the values that a command line of `pylogd broker` sets. Checks that a broker would accept them."""
    given = [word.removeprefix("--set=") for word in command if word.startswith("--set=")]
    settings = options.load_settings(None, data=["/var/lib/pylogd"], assignments=given)
    assert settings.words("log.dirs") == ("/var/lib/pylogd",)
    return dict(word.split("=", 1) for word in given)


def test_every_package_is_in_the_wheel() -> None:
    listed = configparser.ConfigParser()
    listed.read(CHECKOUT / "setup.cfg")
    present = {".".join(path.parent.relative_to(CHECKOUT).parts) for path in (CHECKOUT / "pylogd").rglob("__init__.py")}
    assert present - set(listed["options"]["packages"].split()) == set()


def test_the_brokers_of_the_compose_file_have_settings_that_fit_together() -> None:
    services = compose()["services"]
    brokers = {name: service for name, service in services.items() if name.startswith("broker")}
    assert len(brokers) == BROKERS
    nodes, ports = set(), set()
    for name, service in brokers.items():
        assert service["command"][0] == "broker"
        given = settings_of(service["command"])
        nodes.add(given["node.id"])
        inside, outside = given["advertised.listeners"].split(",")
        assert inside == f"INSIDE://{name}:9092"
        port = outside.rpartition(":")[2]
        ports.add(port)
        assert given["listeners"] == f"INSIDE://0.0.0.0:9092,OUTSIDE://0.0.0.0:{port}"
        assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
        assert service["volumes"] == [f"{name}:/var/lib/pylogd"]
        assert service["depends_on"] == {"zookeeper": {"condition": "service_healthy"}}
        assert given["zookeeper.connect"].startswith("zookeeper:2181/")
    assert len(nodes) == len(ports) == BROKERS
    same = [
        [word for word in service["command"] if not word.startswith(("--set=node.id", "--set=listeners", "--set=adv"))]
        for service in brokers.values()
    ]
    assert same[0] == same[1] == same[2]
    assert set(compose()["volumes"]) >= set(brokers)


def test_the_settings_of_the_chart_are_good() -> None:
    values = yaml.safe_load((PACKAGES / "helm" / "pylogd" / "values.yaml").read_text())
    settings_of([f"--set={name}={value}" for name, value in values["settings"].items()])
    chart = yaml.safe_load((PACKAGES / "helm" / "pylogd" / "Chart.yaml").read_text())
    version = re.search(r'__version__ = "(.*)"', (CHECKOUT / "pylogd" / "__init__.py").read_text())
    assert version is not None and chart["appVersion"] == version[1]


def test_the_image_does_not_run_as_root_and_has_a_health_check() -> None:
    lines = (PACKAGES / "container" / "Containerfile").read_text()
    assert re.search(r"^USER 10001:10001$", lines, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK .*\n.*/readyz", lines, re.MULTILINE)
    (command,) = re.findall(r"^CMD (\[.*?\])$", lines, re.MULTILINE | re.DOTALL)
    words = yaml.safe_load(command.replace("\\\n", ""))
    assert words[0] == "broker"
    assert words[-2:] == ["--set", "metrics.listener=0.0.0.0:9404"]


def test_the_wheels_for_other_systems_cover_each_supported_python() -> None:
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    classifiers = re.findall(r"Python :: 3\.(\d+)$", (CHECKOUT / "setup.cfg").read_text(), re.MULTILINE)
    assert settings["build"] == [f"cp3{minor}-*" for minor in classifiers]


@pytest.mark.parametrize("script", sorted(PACKAGES.rglob("*.sh")), ids=lambda path: str(path.relative_to(PACKAGES)))
def test_scripts_are_valid(script: Path) -> None:
    first = script.read_text().splitlines()[0].removeprefix("#!")
    subprocess.run([first, "-n", str(script)], check=True, timeout=60)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_signed_release_verifies_and_a_changed_one_does_not(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=60)
    signers = tmp_path / "allowed_signers"
    signers.write_text(f"releases@pylogd {key.with_suffix('.pub').read_text()}")
    release = tmp_path / "release"
    release.mkdir()
    wheel = release / "pylogd_broker-0.1.0.whl"
    wheel.write_bytes(b"a wheel")
    sums = release / "SHA256SUMS"
    sums.write_text(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n")
    sign = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "pylogd-release", str(sums)]
    subprocess.run(sign, check=True, timeout=60, capture_output=True)

    def verifies() -> bool:
        command = ["sh", str(PACKAGES / "verify.sh"), str(release), str(signers)]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0

    assert verifies()
    wheel.write_bytes(b"another wheel")
    assert not verifies()
    sums.write_text(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n")
    assert not verifies(), "the checksums are right, but nobody signed them"
