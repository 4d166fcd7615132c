"""Compare the settings of topics and brokers with Apache Kafka's: which there are, and which values are taken.

Each setting is tried with the values at the edges of its type and of all bounds that either broker has, by
IncrementalAlterConfigs with `validate_only`, so nothing is changed. Broker settings that hold from a start on are tried
at Kafka's table of settings (`Settings.java`) and at pylogd's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from conformance import brokers, java_tools
from conformance.checks import HERE, Check, Missing, expect, last_line, run
from pylogd.base.errors import KafkaError
from pylogd.client import Admin, NewTopic
from pylogd.client.core.admin.cluster_operations import ResourceKind
from pylogd.config import SETTINGS, TOPIC_SETTINGS, ConfigError, ConfigType, Setting

_TOPIC: Final = "values"
_EDGES: Final = (0, 1, 4, 9, 12, 14, 17, 22, 1024, 1 << 20, 60_000, 1 << 30, (1 << 31) - 8, 1 << 31, 1 << 63)
_NUMBERS: Final = (
    *(str(value) for value in sorted({edge + step for edge in _EDGES for step in (-1, 0)} | {-3, -2, 2})),
    "-131073", "-131072", "1.5", "0.5", "", " 7", "many",
)  # fmt: skip
_BOOLEANS: Final = ("true", "false", "TRUE", " true", "yes", "1", "")
_POLICIES: Final = ("delete", "compact", "compact,delete", "delete, compact", "", "nonsense", "delete,delete")
_CODECS: Final = ("producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd", "GZIP", "")
_STAMPS: Final = ("CreateTime", "LogAppendTime", "createtime", "")
_REPLICAS: Final = ("", "*", "0:0", "0:0,1:0", "0", "a:b", "0:0,*")
_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "cleanup.policy": _POLICIES,
    "log.cleanup.policy": _POLICIES,
    "compression.type": _CODECS,
    "message.timestamp.type": _STAMPS,
    "log.message.timestamp.type": _STAMPS,
    "leader.replication.throttled.replicas": _REPLICAS,
    "follower.replication.throttled.replicas": _REPLICAS,
    "max.connections.per.ip.overrides": ("", "127.0.0.1:5", "127.0.0.1:5,127.0.0.2:7", "127.0.0.1", "127.0.0.1:x"),
    "sasl.enabled.mechanisms": ("PLAIN", "PLAIN,SCRAM-SHA-256"),
    "listener.security.protocol.map": ("PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MORE:SSL", "PLAINTEXT:NONE"),
}
_NUMERIC: Final = (ConfigType.INT, ConfigType.SHORT, ConfigType.LONG, ConfigType.DOUBLE)


def suite(folder: Path) -> list[Check]:
    """Each setting is a check."""
    mine, other = folder / "pylogd", folder / "kafka"
    mine.mkdir()
    other.mkdir()
    with (
        brokers.running("pylogd", mine) as ours,
        brokers.running("kafka", other) as theirs,
        Admin(ours) as pylogd,
        Admin(theirs) as kafka,
    ):
        for admin in (pylogd, kafka):
            admin.create_topics([NewTopic(_TOPIC, 1, 1)])
        checks = [*_topic(pylogd, kafka), *_broker(pylogd, kafka)]
    return [*checks, *_static()]


def _candidates(setting: Setting) -> Sequence[str]:
    if setting.name in _WORDS:
        return _WORDS[setting.name]
    if setting.type is ConfigType.BOOLEAN:
        return _BOOLEANS
    return _NUMBERS if setting.type in _NUMERIC else ()


def _outcome(admin: Admin, kind: ResourceKind, name: str, setting: str, value: str) -> str:
    try:
        admin.alter_configs(kind, name, {setting: value}, validate_only=True)
    except KafkaError as error:
        return error.code.name
    return "taken"


def _compared(pylogd: Admin, kafka: Admin, kind: ResourceKind, name: str, setting: Setting) -> Iterator[str]:
    """Yield a text for each value of a setting that the brokers treat in different ways."""
    for value in _candidates(setting):
        ours, theirs = (_outcome(admin, kind, name, setting.name, value) for admin in (pylogd, kafka))
        if ours != theirs:
            yield f'"{value}": {ours}, Kafka: {theirs}'


def _topic(pylogd: Admin, kafka: Admin) -> Iterator[Check]:
    for entry in kafka.describe_configs("topic", _TOPIC):
        setting = TOPIC_SETTINGS.get(entry.name)
        if setting is None:
            yield expect(f"topic {entry.name}", False, "pylogd does not have it")
            continue
        faults = list(_compared(pylogd, kafka, "topic", _TOPIC, setting))
        yield expect(f"topic {entry.name}", not faults, "; ".join(faults))


def _broker(pylogd: Admin, kafka: Admin) -> Iterator[Check]:
    """Compare the settings that Kafka changes at run time, on one broker and on all."""
    for entry in kafka.describe_configs("broker", "0"):
        setting = SETTINGS.get(entry.name)
        if setting is None or entry.read_only:
            continue
        (own,) = pylogd.describe_configs("broker", "0", [entry.name])
        yield expect(f"{entry.name} can be changed at run time", not own.read_only, "it is read-only")
        for kind, name in (("a broker", "0"), ("all brokers", "")):
            faults = list(_compared(pylogd, kafka, "broker", name, setting))
            yield expect(f"{entry.name} of {kind}", not faults, "; ".join(faults))


def _static() -> Iterator[Check]:
    """Compare the bounds of all settings by the tables of both."""
    tried = [(setting, value) for setting in SETTINGS.values() for value in _candidates(setting)]
    command = [*java_tools.java(), str(HERE / "java" / "Settings.java")]
    done = run(command, seconds=120, stdin="".join(f"{setting.name}\t{value}\n" for setting, value in tried))
    answers = done.stdout.splitlines()
    if len(answers) != len(tried):
        raise Missing(f"Kafka's table of settings could not be read: {last_line(done.stderr)}")
    faults: dict[str, list[str]] = {}
    for (setting, value), answer in zip(tried, answers, strict=True):
        if answer == "unknown" or (answer == "unbounded" and not _takes(setting, value)):
            continue  # only in pylogd; Kafka takes any number for it, also those that make no sense
        found = faults.setdefault(setting.name, [])
        ours = str(_takes(setting, value)).lower()
        if ours != answer.replace("unbounded", "true"):
            found.append(f'"{value}": {ours}, Kafka: {answer}')
    for name, texts in faults.items():
        yield expect(f"{name} at the start", not texts, "; ".join(texts))


def _takes(setting: Setting, value: str) -> bool:
    try:
        setting.parse(value)
    except ConfigError:
        return False
    return True
