"""The settings of workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylogd.broker.workers.directories import refuse_directories_of_workers
from pylogd.broker.workers.plan import make_plan
from pylogd.config import ConfigError, Settings
from pylogd.config.metadata_store import has_peers, store_file, store_socket


def settings(folder: Path, **values: str) -> Settings:
    named = {name.replace("_", "."): value for name, value in values.items()}
    return Settings({"log.dirs": [str(folder / "one"), str(folder / "two")]}, {"listeners": "127.0.0.1:9092", **named})


def test_workers_have_ports_ids_and_directories_of_their_own(tmp_path: Path) -> None:
    plan = make_plan(settings(tmp_path, node_id="7", host_id="machine"), 2)
    first, second = plan.workers
    assert [str(one) for one in second.listeners] == [
        "PLAINTEXT://127.0.0.1:9094", "BOOTSTRAP_PLAINTEXT://127.0.0.1:9092",
    ]  # fmt: skip
    assert [str(one) for one in second.advertised_listeners] == [
        "PLAINTEXT://127.0.0.1:9094", "BOOTSTRAP_PLAINTEXT://127.0.0.1:9094",
    ]  # fmt: skip
    assert second.inter_broker_listener.name == "PLAINTEXT"
    assert not second.for_listener("PLAINTEXT").flag("socket.reuse.port")
    assert second.for_listener("BOOTSTRAP_PLAINTEXT").flag("socket.reuse.port")
    assert [first.integer("node.id"), second.integer("node.id")] == [7, 8]
    assert second.words("log.dirs") == (str(tmp_path / "one/worker-2"), str(tmp_path / "two/worker-2"))
    assert second.text("host.id") == first.text("host.id") == "machine"
    assert plan.store == (tmp_path / "one/metadata.sqlite", tmp_path / "one/metadata.sock")
    assert store_socket(first) == str(tmp_path / "one/metadata.sock")
    assert store_file(first) is None
    assert has_peers(first)
    assert [str(one) for one in plan.bootstrap] == ["PLAINTEXT://127.0.0.1:9092"]


def test_the_settings_of_a_listener_hold_for_its_shared_port(tmp_path: Path) -> None:
    given = {
        "listeners": "CLIENTS://127.0.0.1:9092,BROKERS://127.0.0.1:9192", "inter.broker.listener.name": "BROKERS",
        "listener.security.protocol.map": "CLIENTS:SSL,BROKERS:PLAINTEXT", "log.dirs": str(tmp_path),
        "listener.name.clients.ssl.keystore.location": "/keys/broker.pem", "metrics.listener": "127.0.0.1:9404",
    }  # fmt: skip
    worker = make_plan(Settings({}, given), 3).workers[2]
    for name in ("CLIENTS", "BOOTSTRAP_CLIENTS"):
        assert worker.for_listener(name).text("ssl.keystore.location") == "/keys/broker.pem"
    assert [one.protocol.value for one in worker.listeners] == ["SSL", "PLAINTEXT", "SSL", "PLAINTEXT"]
    assert worker.inter_broker_listener.port == 9195
    assert worker.text("metrics.listener") == "127.0.0.1:9406"


def test_advertised_ports_are_counted_up(tmp_path: Path) -> None:
    worker = make_plan(settings(tmp_path, advertised_listeners="PLAINTEXT://elsewhere:19092"), 2).workers[1]
    assert [(one.host, one.port) for one in worker.advertised_listeners] == 2 * [("elsewhere", 19094)]
    assert worker.listeners[0].port == 9094


def test_free_ports_are_found_in_a_row(tmp_path: Path) -> None:
    plan = make_plan(settings(tmp_path, listeners="127.0.0.1:0"), 2)
    port = plan.bootstrap[0].port
    assert [[one.port for one in worker.listeners] for worker in plan.workers] == [[port + 1, port], [port + 2, port]]


def test_with_zookeeper_there_is_no_store(tmp_path: Path) -> None:
    plan = make_plan(settings(tmp_path, zookeeper_connect="127.0.0.1:2181"), 1)
    assert plan.store is None
    assert plan.workers[0].text("metadata.store") is None


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"listeners": "unix:/tmp/socket"}, "a listener is an address"),
        ({"metadata_store": "unix:/tmp/socket"}, "name a file"),
        ({"log_dirs": "/tmp/" + 120 * "x"}, "too long for a Unix socket"),
        ({"listeners": "127.0.0.1:65534"}, "need ports 65534 to 65536, and the last one is 65535"),
        (
            {
                "listeners": "A://:9092,B://127.0.0.1:9094",
                "listener_security_protocol_map": "A:PLAINTEXT,B:PLAINTEXT",
                "inter_broker_listener_name": "A",
            },
            "with 2 workers A://:9092 uses ports 9092 to 9094, and B://127.0.0.1:9094 9094 to 9096",
        ),
        ({"metrics_listener": "127.0.0.1:9091"}, "9092 to 9094, and metrics.listener 9091 to 9092"),
    ],
)
def test_settings_that_workers_cannot_have(tmp_path: Path, values: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_plan(settings(tmp_path, **values), 2)


def test_ports_of_different_addresses_may_be_the_same(tmp_path: Path) -> None:
    assert make_plan(settings(tmp_path, metrics_listener="127.0.0.2:9092"), 2).workers


def test_partitions_of_workers_that_are_not_started_are_found(tmp_path: Path) -> None:
    for name in ("worker-1/a-0", "worker-3/a-1", "worker-4", "worker-x/a-2"):
        (tmp_path / "two" / name).mkdir(parents=True)
    (tmp_path / "two" / "worker-4" / "meta.properties").touch()
    (tmp_path / "two" / "worker-5").touch()  # not made by a worker
    chosen = settings(tmp_path)
    assert make_plan(chosen, 2).left_out == (tmp_path / "two" / "worker-3",)
    assert make_plan(chosen, 3).left_out == ()


def test_directories_of_one_broker_and_of_workers_are_not_mixed(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    refuse_directories_of_workers(chosen)
    (tmp_path / "two" / "worker-1").mkdir(parents=True)
    with pytest.raises(ConfigError, match="start with --workers"):
        refuse_directories_of_workers(chosen)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "meta.properties").touch()
    with pytest.raises(ConfigError, match="without --workers"):
        make_plan(chosen, 2)
