"""docs/security.md from its first step to its last: certificates, a broker, users, permissions, quotas, a registry."""

from __future__ import annotations

from pathlib import Path

from pylogd.base.ports import free_ports
from pylogd.config.settings import Settings
from pylogd.config.source import read_file
from tests.docs.console import Console
from tests.docs.kinds import blocks_of_kind

PASSWORD = "an uncommon secret"
ANSWERS = {r"pylogd users (add|bootstrap) .*": PASSWORD, r"pylogd schema-registry .*--add-user .*": PASSWORD}
ENDLESS = {
    r"pylogd broker .*": "grep -q 127.0.0.1 $LOG",
    r"pylogd schema-registry .*--listen .*": "grep -q 'answers on https' $LOG",
}


def test_the_steps_of_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    (tmp_path / "log").mkdir()
    clients, brokers, registry = free_ports(3)
    bootstrap = f"localhost:{clients}"
    written = {
        "CLIENTS://:9093": f"CLIENTS://127.0.0.1:{clients}", "broker1.example:9093": bootstrap,
        "10.0.0.11:9094": f"127.0.0.1:{brokers}", "0.0.0.0:8081": f"127.0.0.1:{registry}",
        "broker1.example": "localhost", "10.0.0.11": "127.0.0.1", "/etc/pylogd": str(folder),
        "/var/lib/pylogd": str(tmp_path / "data"), "/var/log/pylogd": str(tmp_path / "log"),
        '"..."': f'"{PASSWORD}"',
    }  # fmt: skip
    environment = {"PYLOGD_BOOTSTRAP_SERVER": bootstrap, "PYLOGD_COMMAND_CONFIG": str(folder / "admin.properties")}
    with Console(folder, written, ENDLESS, ANSWERS, environment) as console:
        *own, zookeeper = blocks_of_kind("secured", "toml")
        (folder / "pylogd.toml").write_text("".join(console.filled(block.text) for block in own))
        (properties,) = blocks_of_kind("secured", "properties")
        for name in ("admin.properties", "registry.properties"):
            (folder / name).write_text(console.filled(properties.text))
        shown = ""
        for block in blocks_of_kind("secured", "sh"):
            registry_too = "cp broker1.pem registry.pem" if "registry.pem" in block.text else ""
            shown += console.run(block, registry_too)
        (program,) = blocks_of_kind("secured", "python")
        console.write("broker.example:9093", bootstrap)
        console.write('"alice"', '"admin"')
        console.run(program)
    assert "ada\tSCRAM-SHA-512" in shown and "orders-eu" in shown
    (folder / "zookeeper.toml").write_text(zookeeper.text)
    Settings(read_file(folder / "zookeeper.toml"))
