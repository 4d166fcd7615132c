"""`pylogd debug bundle`: collect what a bug report needs, without secrets."""

from __future__ import annotations

import ipaddress
import json
import platform
import re
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from pylogd import __version__
from pylogd.base.clock import wall_ms
from pylogd.base.errors import PylogdError
from pylogd.cli.broker_summary import broker_summaries
from pylogd.cli.client_file import REDACTED, hide
from pylogd.cli.commands import Commands
from pylogd.cli.common import bootstrap_option, connect, format_time, profile_of
from pylogd.cli.groups import lag_of
from pylogd.cli.output import note, print_line
from pylogd.client import Admin, BrokerUnavailable
from pylogd.client.core.admin.offsets import EARLIEST, LATEST
from pylogd.client.core.model import Broker
from pylogd.config.listeners import METRICS_LISTENER as LISTENER
from pylogd.config.listeners import metrics_listener

_METRICS_SECONDS: Final = 10.0
_MOST_METRICS: Final = 64 << 20
_MOST_LOG: Final = 5 << 20
_PACKAGES: Final = ("Twisted", "construct", "crc32c", "cramjam", "kazoo", "click", "rich", "pyOpenSSL", "cryptography")
#: In logs, the values after these words are hidden.
_SECRETS = re.compile(
    r"(?P<name>[\w.\-]*(?:password|secret|token|credential|authorization|jaas)[\w.\-]*)(?P<sep>\"?\s*[=:]\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|(?:(?:Bearer|Basic)\s+)?[^\s,;]+)",
    re.IGNORECASE,
)


@click.group(cls=Commands)
def debug() -> None:
    """Collect what a bug report needs, in one archive."""


@debug.command()
@click.option("-o", "--to", "target", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="The ZIP file to write  [default: pylogd-debug-TIME.zip]")  # fmt: skip
@click.option("--metrics", "urls", multiple=True, metavar="URL",
              help="Metrics from this address, in place of those that the brokers' settings name "
              "(metrics.listener), such as http://broker1:9404/metrics. Repeatable.")  # fmt: skip
@click.option("--no-metrics", is_flag=True, help="Leave the brokers' metrics out.")
@click.option("--log", "logs", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
              metavar="FILE", help="Also the end of a log file (5 MiB). Repeatable.")  # fmt: skip
@bootstrap_option
@click.pass_context
def bundle(
    ctx: click.Context, target: Path | None, urls: Sequence[str], no_metrics: bool, logs: Sequence[Path], bootstrap: str
) -> None:  # fmt: skip
    """Write a ZIP file with versions, metadata, settings, offsets, groups, metrics and logs. Prints its name.

    Metrics come from every broker that has a metrics.listener; --metrics names addresses where that is not one which
    this machine can reach. No records are read. Values of settings that brokers call sensitive, and those whose names
    tell of a secret, are hidden; so is what follows words such as password in logs. The bundle has names of topics,
    groups, users and hosts: look at it before you send it. errors.json says what is missing and why; the command
    succeeds all the same.

    \b
    pylogd debug bundle --log /var/log/pylogd/broker.log
    """
    name = f"pylogd-debug-{datetime.fromtimestamp(wall_ms() / 1000, UTC):%Y%m%dT%H%M%SZ}"
    path = target or Path(f"{name}.zip")
    with path.open("xb") as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        path.chmod(0o600)
        collected = _Bundle(archive, name)
        collected.part("about.json", lambda: _about(ctx, bootstrap))
        try:
            with connect(bootstrap) as connected, Admin(connected) as admin:
                admin.describe_cluster()
                _collect_cluster(collected, admin)
                if not (urls or no_metrics):
                    _collect_metrics(collected, admin)
        except PylogdError as error:
            collected.errors["cluster"] = str(error)
        for number, url in enumerate(urls):
            collected.part(f"metrics-{number}-{urlsplit(url).hostname}.txt", lambda url=url: _metrics(url))  # type: ignore[misc]
        for number, log in enumerate(logs):
            collected.part(f"log-{number}-{log.name}", lambda log=log: _end_of(log))  # type: ignore[misc]
        collected.write("errors.json", collected.errors)
    for what, why in collected.errors.items():
        note(f"not in the bundle: {what}: {why}")
    print_line(str(path))


@dataclass(slots=True)
class _Bundle:
    """The parts of a bundle.

    errors: the reasons why parts are missing, by the name of the part.
    """

    archive: zipfile.ZipFile
    folder: str
    errors: dict[str, str] = field(default_factory=dict)

    def part(self, name: str, collect: Callable[[], Any]) -> None:
        """Add the result of `collect`, or record its error."""
        try:
            found = collect()
        except (PylogdError, OSError, ValueError) as error:
            self.errors[name] = f"{type(error).__name__}: {error}"
        else:
            self.write(name, found)

    def write(self, name: str, found: Any) -> None:
        """Add a file: text unchanged, anything else as JSON."""
        text = found if isinstance(found, str) else json.dumps(found, indent=1, ensure_ascii=False, default=_as_json)
        self.archive.writestr(f"{self.folder}/{name}", text.encode(errors="backslashreplace"))


def _as_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _about(ctx: click.Context, bootstrap: str) -> dict[str, Any]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    profile = profile_of(ctx)
    return {
        "pylogd": __version__, "python": sys.version, "system": platform.platform(), "at": format_time(wall_ms()),
        "bootstrap_servers": bootstrap, "packages": versions, "profile": profile and profile.as_document(),
    }  # fmt: skip


def _collect_cluster(collected: _Bundle, admin: Admin) -> None:
    """Ask the cluster for its brokers, topics, settings, groups and more, and add a file for each answer."""
    part = collected.part
    part("cluster.json", admin.describe_cluster)
    part("brokers.json", lambda: broker_summaries(
        admin.describe_cluster().brokers, admin.list_topics(internal=True), {}
    ))  # fmt: skip
    part("topics.json", lambda: admin.list_topics(internal=True))
    part("log_dirs.json", lambda: [
        {**one._asdict(), "sizes": {str(at): size for at, size in one.sizes.items()}}
        for one in admin.describe_log_dirs()
    ])  # fmt: skip
    part("offsets.json", lambda: _offsets(admin))
    part("broker_settings.json", lambda: {
        one.node_id: _settings(admin, "broker", str(one.node_id)) for one in admin.describe_cluster().brokers
    })  # fmt: skip
    part("topic_settings.json", lambda: {
        topic.name: _settings(admin, "topic", topic.name) for topic in admin.list_topics(internal=True)
    })  # fmt: skip
    part("groups.json", lambda: [_group(admin, one.group_id) for one in admin.list_groups()])
    part("features.json", lambda: [one._asdict() for one in admin.describe_features()])
    part("reassignments.json", lambda: {str(at): move for at, move in admin.reassignments().items()})
    part("transactions.json", lambda: [one._asdict() for one in admin.list_transactions()])
    part("quotas.json", lambda: [
        {**entity._asdict(), "quotas": values} for entity, values in admin.client_quotas().items()
    ])  # fmt: skip


def _settings(admin: Admin, kind: Any, name: str) -> list[dict[str, Any]]:
    """Return the settings of an entity that differ from their defaults."""
    return [
        {"name": one.name, "source": one.source,
         "value": REDACTED if one.sensitive else None if one.value is None else hide(one.name, one.value)}
        for one in admin.describe_configs(kind, name) if one.source != "default"
    ]  # fmt: skip


def _group(admin: Admin, name: str) -> dict[str, Any]:
    found = admin.describe_groups([name])
    if name in found.errors:
        raise found.errors[name]
    if name not in found.groups:
        raise BrokerUnavailable(f"its coordinator does not answer: broker {', '.join(map(str, found.silent))}")
    return {**asdict(found.groups[name]), "offsets": lag_of(found, name)}


def _offsets(admin: Admin) -> list[dict[str, Any]]:
    online = [
        (topic.name, one.index) for topic in admin.list_topics(internal=True) for one in topic.partitions
        if one.leader >= 0
    ]  # fmt: skip
    places = [at for name, index in online for at in admin.cluster.partitions(name) if at.partition == index]
    begins, ends = admin.offsets(dict.fromkeys(places, EARLIEST)), admin.offsets(dict.fromkeys(places, LATEST))
    return [
        {"topic": at.topic, "partition": at.partition, "beginning": begins[at].offset, "end": ends[at].offset}
        for at in places
    ]  # fmt: skip


def _collect_metrics(collected: _Bundle, admin: Admin) -> None:
    """Add the metrics of each broker that serves them."""
    for broker in admin.describe_cluster().brokers:
        name = f"metrics-broker-{broker.node_id}.txt"
        try:
            url = _metrics_url(admin, broker)
        except (PylogdError, ValueError) as error:
            collected.errors[name] = f"{type(error).__name__}: {error}"
            continue
        if url is not None:
            collected.part(name, lambda url=url: _metrics(url))  # type: ignore[misc]


def _metrics_url(admin: Admin, broker: Broker) -> str | None:
    """Return the URL of a broker's metrics, from its settings; None if it serves none (Kafka's brokers never do).

    Raises ValueError if the URL can't be known here: the broker chose the port, or only processes on the broker's
    machine reach the address.
    """
    entries = admin.describe_configs("broker", str(broker.node_id), [LISTENER])
    listener = metrics_listener(next((one.value for one in entries if one.value), None))
    if listener is None:
        return None
    if not listener.port:
        raise ValueError(f"{LISTENER} of broker {broker.node_id} has no fixed port; give the address with --metrics")
    if not listener.exposed and not _is_loopback(broker.host):
        raise ValueError(
            f"{LISTENER} of broker {broker.node_id} is {listener.host}, which only its own machine reaches: run this "
            "command there with --metrics"
        )
    host = broker.host if listener.wildcard else listener.host
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.port}/metrics"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _metrics(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url} is not an address such as http://broker1:9404/metrics")
    try:
        with urllib.request.urlopen(url, timeout=_METRICS_SECONDS) as response:
            found: bytes = response.read(_MOST_METRICS)
    except urllib.error.URLError as error:
        raise OSError(f"{url}: {error.reason}") from None
    return found.decode(errors="replace")


def _end_of(log: Path) -> str:
    """Return the last `_MOST_LOG` bytes of a log from its first whole line on, with secrets hidden."""
    with log.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - _MOST_LOG))
        text = stream.read(_MOST_LOG).decode(errors="replace")
    if size > _MOST_LOG:
        text = text.partition("\n")[2]
    return hide_secrets(text)


def hide_secrets(text: str) -> str:
    """Return the text with the values of secrets replaced by `REDACTED`.

    A secret is recognized by its name in `name=value` or `name: value`: one with "password", "secret", "token",
    "credential", "authorization" or "jaas" in it. Secrets without such a name stay.
    """
    return _SECRETS.sub(lambda found: f"{found['name']}{found['sep']}{REDACTED}", text)
