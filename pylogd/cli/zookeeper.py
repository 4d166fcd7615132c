"""`pylogd zookeeper`: show the registries that brokers and consumers keep in ZooKeeper, or protect them with ACLs.

`pylogd groups` shows the groups among them in the form of brokers' groups, with their lag (`zookeeper_groups`).

It ignores nodes with unexpected contents, because other projects' tools write there too.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from pylogd.broker.process.options import load_settings
from pylogd.cli.output import note, output_format, output_option, print_document, print_line, print_table
from pylogd.client import Admin
from pylogd.client.core.model import (
    GroupDescription,
    GroupMember,
    GroupsDescribed,
    OffsetAndMetadata,
    TopicPartition,
)
from pylogd.config import ConfigError
from pylogd.config.zookeeper import ZooKeeperSecurity, parse_connect

_CONNECT_SECONDS = 10.0
_DEFAULT = "localhost:2181"
#: The kind of groups whose consumers coordinate through ZooKeeper.
KIND: Final = "zookeeper"
#: The coordinator of a group that no broker coordinates.
_NO_COORDINATOR: Final = -1


class _Tree:
    """A ZooKeeper tree below the chroot of a connect string, read as JSON."""

    def __init__(self, connect: str, security: ZooKeeperSecurity, read_only: bool = True) -> None:
        # Only this command needs it.
        from kazoo.client import KazooClient  # noqa: PLC0415
        from kazoo.exceptions import KazooException, NoNodeError  # noqa: PLC0415
        from kazoo.handlers.threading import KazooTimeoutError  # noqa: PLC0415

        hosts, self.chroot = parse_connect(connect)
        self.failure, self._no_node = KazooException, NoNodeError
        silent = logging.Logger("kazoo", logging.CRITICAL)
        self._client = KazooClient(hosts, logger=silent, read_only=read_only, **security.kazoo_arguments())
        try:
            self._client.start(_CONNECT_SECONDS)
        except KazooTimeoutError as error:
            seconds = f"{_CONNECT_SECONDS:.0f} s"
            raise click.ClickException(f"no ZooKeeper server answered at {hosts} within {seconds}") from error
        if self.chroot and self._client.exists(self.chroot) is None:
            self.close()
            raise click.ClickException(f"ZooKeeper at {hosts} has no node {self.chroot}: is the chroot right?")

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def names(self, path: str) -> list[str]:
        """Return the sorted names of a node's children; [] if the node does not exist."""
        try:
            return sorted(self._client.get_children(self.chroot + path or "/"))
        except self._no_node:
            return []

    def text(self, path: str) -> str | None:
        """Return a node's data; None if the node does not exist."""
        try:
            data: bytes = self._client.get(self.chroot + path)[0]
        except self._no_node:
            return None
        return data.decode(errors="replace")

    def protect(self) -> int:
        """Give every node the ACL that brokers with `zookeeper.set.acl` would; return how many there are."""
        from pylogd.store.node_acls import protect  # noqa: PLC0415 - kazoo, as above

        return protect(self._client, self.chroot)

    def document(self, path: str) -> dict[str, Any]:
        """Return the JSON object in a node; {} if the node does not exist or does not hold a JSON object."""
        try:
            found = json.loads(self.text(path) or "")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def tree(self, path: str) -> dict[str, dict[str, str | None]]:
        """Return the data of the nodes two levels below, as `{topic: {partition: data}}`."""
        return {
            topic: {
                partition: self.text(f"{path}/{topic}/{partition}")
                for partition in sorted(self.names(f"{path}/{topic}"), key=_number)
            }
            for topic in self.names(path)
        }


def _brokers(tree: _Tree) -> list[dict[str, Any]]:
    found = []
    for name in sorted(tree.names("/brokers/ids"), key=_number):
        node = tree.document(f"/brokers/ids/{name}")
        found.append(
            {
                "broker": name,
                "host": node.get("host"),
                "port": node.get("port"),
                "endpoints": node.get("endpoints", []),
                "rack": node.get("rack"),
            }
        )
    return found


def _topics(tree: _Tree) -> list[dict[str, Any]]:
    found = []
    for name in tree.names("/brokers/topics"):
        partitions = tree.document(f"/brokers/topics/{name}").get("partitions")
        replicas = partitions if isinstance(partitions, dict) else {}
        found.append({"topic": name, "partitions": dict(sorted(replicas.items(), key=lambda item: _number(item[0])))})
    return found


def _controller(tree: _Tree) -> dict[str, Any]:
    return {
        "broker": tree.document("/controller").get("brokerid"),
        "epoch": tree.text("/controller_epoch"),
    }


def _groups(tree: _Tree) -> list[dict[str, Any]]:
    found = []
    for group in tree.names("/consumers"):
        path = f"/consumers/{group}"
        consumers = {}
        for name in tree.names(f"{path}/ids"):
            subscription = tree.document(f"{path}/ids/{name}").get("subscription")
            consumers[name] = subscription if isinstance(subscription, dict) else {}
        found.append(
            {
                "group": group,
                "consumers": consumers,
                "owners": tree.tree(f"{path}/owners"),
                "offsets": tree.tree(f"{path}/offsets"),
            }
        )
    return found


def _read_groups(connect: str) -> list[dict[str, Any]]:
    """Return the groups in a ZooKeeper: group, consumers, owners, offsets. Raises ClickException."""
    tree = _connect(connect, None, None, None, read_only=True)
    try:
        return _groups(tree)
    except tree.failure as error:
        raise click.ClickException(f"ZooKeeper failed: {type(error).__name__} {error}".strip()) from error
    finally:
        tree.close()


_REGISTRIES: dict[str, Callable[[_Tree], Any]] = {
    "brokers": _brokers,
    "controller": _controller,
    "topics": _topics,
    "groups": _groups,
}


@click.command()
@click.argument("registries", nargs=-1, type=click.Choice(list(_REGISTRIES)), metavar="[REGISTRY]...")
@click.option("-z", "--zookeeper", "connect", metavar="HOST:PORT[,...][/CHROOT]", envvar="PYLOGD_ZOOKEEPER",
              default=_DEFAULT, show_default=True,
              help="Servers, as in the setting zookeeper.connect. Also from PYLOGD_ZOOKEEPER.")  # fmt: skip
@click.option("-c", "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="A broker's settings file (TOML): its zookeeper.* settings say how to connect.")  # fmt: skip
@click.option("--digest", metavar="USER:PASSWORD", envvar="PYLOGD_ZOOKEEPER_DIGEST",
              help="Digest credentials; prefer --config or PYLOGD_ZOOKEEPER_DIGEST.")  # fmt: skip
@click.option("--truststore", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="Use TLS and trust the certificates in this PEM file.")  # fmt: skip
@click.option("--protect", is_flag=True,
              help="Give all nodes the ACLs of zookeeper.set.acl. Needs the brokers' credentials.")  # fmt: skip
@output_option
@click.pass_context
def zookeeper(
    ctx: click.Context, registries: Sequence[str], connect: str, config: Path | None, digest: str | None,
    truststore: str | None, protect: bool,
) -> None:  # fmt: skip
    """Show registries in ZooKeeper: brokers, controller, topics, groups, or all of them.

    Groups are those of consumers that coordinate through ZooKeeper; `pylogd groups` shows those of brokers,
    and with -z also these, with their lag.

    \b
    pylogd zookeeper -z localhost:2181/pylogd
    pylogd zookeeper -z localhost:2181 groups --json
    pylogd zookeeper --config /etc/pylogd/pylogd.toml --protect

    With --output tsv, a line for each entry: its registry, then broker, host, port, rack; broker, epoch; topic,
    partition, replicas; or group, topic, partition, owner, offset.
    """
    if ctx.get_parameter_source("connect") is click.core.ParameterSource.DEFAULT:
        connect = ""
    tree = _connect(connect, config, digest, truststore, read_only=not protect)
    try:
        if protect:
            note(f"{tree.protect()} nodes are protected")
            return
        wanted = [name for name in _REGISTRIES if name in registries or not registries]
        found = {name: _REGISTRIES[name](tree) for name in wanted}
    except tree.failure as error:
        raise click.ClickException(f"ZooKeeper failed: {type(error).__name__} {error}".strip()) from error
    finally:
        tree.close()
    if print_document(found):
        return
    for name in wanted:
        _print(name, found[name])


def _connect(
    connect: str | None, config: Path | None, digest: str | None, truststore: str | None, *, read_only: bool
) -> _Tree:
    """Connect as the options say; those of the command line override the settings file."""
    security = ZooKeeperSecurity()
    try:
        if config is not None:
            settings = load_settings(config)
            connect, security = connect or settings.text("zookeeper.connect"), settings.zookeeper_security
        if digest is not None:
            security = replace(security, digest=digest)
        if truststore is not None:
            security = replace(security, tls=True, truststore=truststore)
        return _Tree(connect or _DEFAULT, security, read_only)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--zookeeper or --config") from None


def _print(name: str, found: Any) -> None:
    rows = _ROWS[name](found)
    if output_format() == "tsv":
        print_table([], ([name, *row] for row in rows))
        return
    print_line(name if rows else f"{name}: none", bold=True)
    if rows:
        print_table(_HEADINGS[name], rows)


def _broker_rows(found: Any) -> list[list[Any]]:
    return [[b["broker"], b["host"] or "", b["port"] or "", b["rack"] or ""] for b in found]


def _controller_rows(found: Any) -> list[list[Any]]:
    if found["broker"] is None and found["epoch"] is None:
        return []
    return [["" if found["broker"] is None else found["broker"], found["epoch"] or ""]]


def _topic_rows(found: Any) -> list[list[Any]]:
    return [
        [topic["topic"], partition, ",".join(map(str, replicas))]
        for topic in found
        for partition, replicas in topic["partitions"].items()
    ]


def _group_rows(found: Any) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for group in found:
        owners, offsets = group["owners"], group["offsets"]
        for topic in sorted(owners.keys() | offsets.keys()):
            owned, committed = owners.get(topic, {}), offsets.get(topic, {})
            for partition in sorted(owned.keys() | committed.keys(), key=_number):
                owner, offset = owned.get(partition), committed.get(partition)
                rows.append([group["group"], topic, partition, owner or "", "" if offset is None else offset])
    return rows


_ROWS: dict[str, Callable[[Any], list[list[Any]]]] = {
    "brokers": _broker_rows,
    "controller": _controller_rows,
    "topics": _topic_rows,
    "groups": _group_rows,
}
_HEADINGS = {
    "brokers": [">broker", "host", ">port", "rack"],
    "controller": [">broker", ">epoch"],
    "topics": ["topic", ">partition", "replicas"],
    "groups": ["group", "topic", ">partition", "owner", ">offset"],
}


def _number(name: str) -> tuple[int, str]:
    """Return a sort key that orders numbers by value, before all other names."""
    return (int(name), "") if name.isascii() and name.isdigit() else (sys.maxsize, name)


def zookeeper_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option for the ZooKeeper through which consumers coordinate."""
    option = click.option(
        "-z", "--zookeeper", metavar="HOST:PORT[,...][/CHROOT]", envvar="PYLOGD_ZOOKEEPER",
        help="Also the groups of consumers that coordinate through this ZooKeeper. Also from PYLOGD_ZOOKEEPER.",
    )  # fmt: skip
    return option(command)


def zookeeper_groups(admin: Admin, zookeeper: str | None, silent: Collection[int], timeout: float) -> GroupsDescribed:
    """Return the groups in ZooKeeper, with their offsets and the ends of the logs.

    zookeeper: the address of ZooKeeper; None returns no groups.
    silent: the brokers that did not answer before.
    timeout: the seconds to look up the ends.

    Raises ClickException if ZooKeeper does not answer.
    """
    found = _read_groups(zookeeper) if zookeeper else []
    offsets = {each["group"]: _offsets(each["offsets"]) for each in found}
    groups = {each["group"]: _group(each) for each in found}
    owned = [partition for group in groups.values() for member in group.members for partition in member.assignment]
    partitions = {*owned, *(partition for known in offsets.values() for partition in known)}
    if not partitions:
        return GroupsDescribed(groups, offsets, {}, (), {})
    ends = admin.log_ends(sorted(partitions), silent, timeout)
    return GroupsDescribed(groups, offsets, ends.ends, ends.silent, {})


def _offsets(tree: dict[str, dict[str, str | None]]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(topic, int(partition)): OffsetAndMetadata(int(offset))
        for topic, partitions in tree.items()
        for partition, offset in partitions.items()
        if partition.isdecimal() and offset is not None and offset.isdecimal()
    }


def _group(found: dict[str, Any]) -> GroupDescription:
    assigned: dict[str, list[TopicPartition]] = {name: [] for name in found["consumers"]}
    for topic, partitions in found["owners"].items():
        for partition, owner in partitions.items():
            consumer = (owner or "").rpartition("-")[0]  # an owner is a stream of a consumer
            if partition.isdecimal() and consumer in assigned:
                assigned[consumer].append(TopicPartition(topic, int(partition)))
    members = tuple(
        GroupMember(name, None, "", "", tuple(sorted(found["consumers"][name])), tuple(partitions))
        for name, partitions in sorted(assigned.items())
    )
    return GroupDescription(found["group"], "Stable" if members else "Empty", KIND, "", _NO_COORDINATOR, members)
