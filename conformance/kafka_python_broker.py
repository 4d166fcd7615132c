"""A pytest plugin for kafka-python's integration suite: its fixture of a broker starts pylogd.

`conformance.kafka_python_suite` copies it beside the suite. The fixture chooses the transport and SASL's mechanism.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import py  # type: ignore[import-untyped]
from kafka import KafkaAdminClient
from test.integration.fixtures import KafkaFixture  # type: ignore[import-not-found]

from pylogd.local.authority import Authority, write_secret
from pylogd.local.broker import BrokerProcess, pylogd_command

_HOST = "localhost"


class Broker(KafkaFixture):  # type: ignore[misc]
    """What replaces the methods of the suite's fixture that run Apache Kafka."""

    process: BrokerProcess | None = None
    tmp_dir: Any

    def open(self) -> None:
        """Start the broker with the fixture's transport."""
        self.tmp_dir = self.tmp_dir or py.path.local.mkdtemp()
        folder = Path(str(self.tmp_dir))
        settings = {"node.id": "0"}
        if self.ssl_enabled:
            self.ssl_dir = str(folder)
            authority = Authority.open(folder)
            (folder / "ca-cert").write_text(authority.certificate)
            write_secret(folder / "broker.pem", authority.issue(_HOST, [_HOST]).pem)
            settings["ssl.keystore.location"] = str(folder / "broker.pem")
        if self.sasl_enabled:
            settings["sasl.enabled.mechanisms"] = self.sasl_mechanism
        if self.sasl_mechanism == "PLAIN":
            login = f'PlainLoginModule required user_{self.broker_user}="{self.broker_password}";'
            settings[f"listener.name.{self.transport.lower()}.plain.sasl.jaas.config"] = login
        elif self.sasl_enabled:
            command = [*pylogd_command(), "users", "bootstrap", self.broker_user, "--data", str(folder / "data")]
            subprocess.run(command, input=f"{self.broker_password}\n", text=True, check=True, timeout=60)
        self.process = BrokerProcess(folder / "data", folder / "log", settings, host=f"{self.transport}://{_HOST}")
        self.port = self.process.port
        self.child, self.running = self, True

    def start(self) -> None:
        """`open` has started it."""

    def stop(self) -> None:
        """Stop the broker."""
        if self.process is not None:
            self.process.stop()
        self.process, self.running = None, False

    def dump_logs(self) -> None:
        """Print what the broker logged; the suite does it after each test."""
        if self.process is not None:
            print(self.process.log())

    def get_topic_names(self) -> list[str]:
        """Return the names of all topics. The suite asks Kafka's command, which is not there."""
        with KafkaAdminClient(**self._enrich_client_params({})) as admin:
            names: list[str] = admin.list_topics()
        return names


def pytest_configure(config: Any) -> None:
    """Replace the methods."""
    for name in ("open", "start", "stop", "dump_logs", "get_topic_names"):
        setattr(KafkaFixture, name, Broker.__dict__[name])
