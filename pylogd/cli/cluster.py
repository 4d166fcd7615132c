"""`pylogd cluster`: show brokers, partitions and disks, judge their health, elect leaders, and run a test cluster.

`health` makes `Facts` of what brokers tell any client, which `pylogd.client.core.admin.health` judges; the verdict is
the exit status.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, UnsupportedByBroker
from pylogd.cli.broker_summary import broker_columns, broker_summaries
from pylogd.cli.commands import Commands
from pylogd.cli.common import assignments, bootstrap_option, connect, format_bytes
from pylogd.cli.output import note, output_format, output_option, print_document, print_line, print_records
from pylogd.cli.silent_brokers import ask_log_dirs, log_dir_state
from pylogd.client import Admin
from pylogd.client.core.admin.health import MOST_CONFIGS, Facts, Partitions, Reason, judge, stuck_partitions, verdict_of
from pylogd.client.core.model import Broker, EligibleReplicas, LogDir, Partition, Reassignment, Topic, TopicPartition
from pylogd.local.cluster import LocalCluster

#: The seconds between two checks by `up` that its brokers still run.
_CHECK_SECONDS = 0.2
#: The seconds between two looks of `health --wait`.
_HEALTH_SECONDS: Final = 0.5
#: The time for brokers to answer about their disks, all at the same time. A later one is reported as silent.
_DISK_SECONDS: Final = 1.5
_NOT_ELIGIBLE = EligibleReplicas((), ())
_EVERYWHERE: Final = "all data directories"


class _Labels(NamedTuple):
    """The labels of live brokers by id, and the label of each topic by name ("" if it has no label)."""

    brokers: dict[int, tuple[str, ...]]
    topics: dict[str, str]


@click.group(cls=Commands, invoke_without_command=True)
@output_option
@bootstrap_option
@click.pass_context
def cluster(ctx: click.Context, bootstrap: str) -> None:
    """Show the brokers of a cluster and their data directories, or run one of the commands below.

    Prints for each data directory: broker, host, port, directory, partitions, bytes, state: online, offline or cordoned
    (online, but without new partitions). A broker that does not answer has one line, with the state silent.

    \b
    pylogd cluster  brokers and data directories
    """
    if ctx.invoked_subcommand is not None:
        return
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = admin.describe_cluster()
        brokers = {broker.node_id: broker for broker in found.brokers}
        directories, silent = ask_log_dirs(admin, brokers)
    records = [_directory_record(one, brokers[one.broker]) for one in directories]
    records += [_silent_record(brokers[node]) for node in silent]
    records.sort(key=lambda record: record["broker"])
    document = {
        "cluster_id": found.cluster_id,
        "controller": found.controller,
        "brokers": [
            {"broker": one.node_id, "host": one.host, "port": one.port, "rack": one.rack, "host_id": one.host_id}
            for one in found.brokers
        ],
        "log_dirs": records,
    }
    if not print_document(document):
        columns = [">broker", "host", ">port", "directory", ">partitions", ">bytes", "state"]
        print_records(columns, records, {"bytes": format_bytes})


@cluster.command()
@click.option("--wait", type=click.FloatRange(0), default=0.0, metavar="SECONDS",
              help="Wait for at most so many seconds until the cluster can be reached and is healthy.")  # fmt: skip
@output_option
@bootstrap_option
@click.pass_context
def health(ctx: click.Context, wait: float, bootstrap: str) -> None:
    """Say whether the cluster is healthy, and why not.

    Exit status: 0 healthy; 3 degraded: everything can be used, and another failure may change that; 4 critical: some
    partitions can't be written or read; 1 if no broker can be reached; 2 for a wrong command line.

    \b
    pylogd cluster health                 a verdict, with the reasons
    pylogd cluster health --wait 300      after a restart, before the next one
    """
    end = time.monotonic() + wait
    told = False
    while True:
        reasons: list[Reason] = []
        error: PylogdError | None = None
        try:
            reasons = judge(_facts(bootstrap))
        except PylogdError as failed:
            error = failed
        if (error is None and not reasons) or time.monotonic() >= end:
            break
        if not told:
            told = True
            note(f"waiting: {error or reasons[0].text}")
        time.sleep(_HEALTH_SECONDS)
    if error is not None:
        raise error
    verdict = verdict_of(reasons)
    shown = [{"verdict": one.verdict.name.lower(), "code": one.code, "text": one.text} for one in reasons]
    if not print_document({"verdict": verdict.name.lower(), "reasons": shown}):
        print_line(verdict.name.lower())
        for reason in reasons:
            print_line(f"{reason.verdict.name.lower()}: {reason.text}")
    ctx.exit(verdict)


def _facts(bootstrap: str) -> Facts:
    """Ask a cluster for its state. Raises PylogdError."""
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = admin.describe_cluster()
        topics = admin.list_topics(internal=True)
        partitions = Partitions(topics)
        facts = Facts([one.node_id for one in found.brokers], found.controller, partitions)
        directories, silent = ask_log_dirs(admin, facts.brokers, _DISK_SECONDS)
        least = {}
        for name in list(partitions.lacking)[:MOST_CONFIGS]:
            for entry in admin.describe_configs("topic", name, ["min.insync.replicas"]):
                least[name] = int(entry.value or 1)
    facts.directories, facts.silent, facts.least = directories, silent, least
    facts.stuck = stuck_partitions(topics, directories)
    return facts


@cluster.command()
@click.option("--under-replicated", is_flag=True, help="Show only partitions with replicas that are not in sync.")
@click.option("--misplaced", is_flag=True, help="Show only partitions with replicas on brokers without the topic's "
              "label.")  # fmt: skip
@output_option
@bootstrap_option
def describe(under_replicated: bool, misplaced: bool, bootstrap: str) -> None:
    """Show controller, leaders, labels, and replicas that are not in sync or not where their topic's label is.

    Brokers that have replicas and are down are shown too. For each partition with replicas that are not in sync prints:
    topic, partition, leader, replicas, isr, elr (eligible replicas), last_known_elr. With --misplaced, for each
    partition with replicas on brokers without the topic's label: topic, partition, label, replicas, misplaced. tsv has
    only these partitions.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = admin.describe_cluster()
        topics = admin.list_topics(internal=True)
        labels = _labels(admin, topics)
        outside = _misplaced(topics, labels, admin.reassignments() if any(labels.topics.values()) else {})
        lagging = [(topic, one) for topic in topics for one in topic.partitions if len(one.isr) < len(one.replicas)]
        eligible = _eligible(admin, {topic.name for topic, _ in lagging})
    summary = broker_summaries(found.brokers, topics, labels.brokers)
    document = {
        "cluster_id": found.cluster_id,
        "controller": found.controller,
        "brokers": summary,
        "leaderless": sum(one.leader < 0 for topic in topics for one in topic.partitions),
        "under_replicated": [_partition_record(topic, one, eligible) for topic, one in lagging],
        "misplaced": outside,
    }
    if print_document(document):
        return
    everything = not under_replicated and not misplaced and output_format() != "tsv"
    if everything:
        print_line(f"cluster {found.cluster_id}, controller is broker {found.controller}")
        print_records(broker_columns(summary), summary)
        print_line("")
    if misplaced or (everything and outside):
        print_records(["topic", ">partition", "label", "replicas", "misplaced"], outside)
    if misplaced:
        return
    if everything and not lagging:
        print_line("all replicas are in sync")
    else:
        columns = ["topic", ">partition", ">leader", "replicas", "isr", "elr", "last_known_elr"]
        print_records(columns, [_partition_record(topic, one, eligible) for topic, one in lagging])


@cluster.command()
@click.argument("partitions", nargs=-1, metavar="[TOPIC:PARTITION]...")
@click.option("--unclean", is_flag=True, help="Where there is no leader, elect any live replica, even one that lacks "
              "committed records. These are lost.")  # fmt: skip
@bootstrap_option
def elect(partitions: Sequence[str], unclean: bool, bootstrap: str) -> None:
    """Elect the preferred replicas as leaders.

    Without arguments, of all partitions.
    """
    wanted = [_parse_partition(text) for text in partitions] or None
    with connect(bootstrap) as connected, Admin(connected) as admin:
        outcome = admin.elect_leaders(wanted, unclean=unclean)
    for partition, error in outcome.items():
        note(f"{partition}: {'done' if error is None else error}")
    if not outcome:
        note("nothing to elect")
    # A partition that its preferred replica already leads is not a failure.
    if any(error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED for error in outcome.values()):
        raise click.ClickException("some leaders could not be elected")


@cluster.command()
@click.argument("broker", type=int)
@click.argument("directory")
@bootstrap_option
def reopen(broker: int, directory: str, bootstrap: str) -> None:
    """Use a repaired log directory again.

    BROKER uses its log DIRECTORY again, after it failed or was full, without a restart.

    Repair the disk first. The logs in the directory are recovered as after a crash, and then copy what they lack from
    the other replicas.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = admin.reopen_log_dir(broker, directory)
    if found.error is not None:
        raise click.ClickException(f"broker {broker} can't use {directory} yet ({found.error}): see the broker's log")
    note(f"broker {broker} uses {directory}, with {len(found.sizes)} partitions")


@cluster.command()
@click.argument("broker", type=int)
@click.argument("directories", nargs=-1, metavar="[DIRECTORY]...")
@bootstrap_option
def cordon(broker: int, directories: Sequence[str], bootstrap: str) -> None:
    """Keep new partitions away from a disk or a broker.

    The named data DIRECTORIES of BROKER get no new partitions; without any, the broker gets no new replicas. The
    partitions that are there stay in use: `pylogd reassign` moves them.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        named = admin.cordon(broker, directories)
    note(f"broker {broker}: {', '.join(named) or _EVERYWHERE} will get no new partitions")


@cluster.command()
@click.argument("broker", type=int)
@click.argument("directories", nargs=-1, metavar="[DIRECTORY]...")
@bootstrap_option
def uncordon(broker: int, directories: Sequence[str], bootstrap: str) -> None:
    """Place new partitions again in data DIRECTORIES of BROKER, or, without any, in all of them."""
    with connect(bootstrap) as connected, Admin(connected) as admin:
        named = admin.cordon(broker, directories, cordoned=False)
    note(f"broker {broker}: {', '.join(named) or _EVERYWHERE} may get new partitions again")


@cluster.command()
@click.argument("broker", type=int)
@click.argument("labels", nargs=-1, metavar="[LABEL]...")
@bootstrap_option
def label(broker: int, labels: Sequence[str], bootstrap: str) -> None:
    """Let BROKER carry these LABELs, and no others; without any, none.

    Topics with the placement.label of a broker get replicas there. Replicas of a label that the broker loses stay, and
    `pylogd cluster describe` lists them as misplaced.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        admin.alter_configs("broker", str(broker), {"broker.labels": ",".join(labels)})
    note(f"broker {broker} carries {', '.join(labels) or 'no label'}")


@cluster.command()
@click.option("-n", "--brokers", "count", type=click.IntRange(1, 100), default=3, show_default=True,
              help="Number of brokers.")  # fmt: skip
@click.option("-d", "--data", type=click.Path(path_type=Path), required=True, metavar="DIR",
              help="Data directory. An existing one is resumed.")  # fmt: skip
@click.option("-p", "--port", type=click.IntRange(0, 65000), default=9092, show_default=True,
              help="Port of the first broker; the others use the following ports, and then the listeners for passwords "
              "of --secure. 0 picks free ports.")  # fmt: skip
@click.option("--zookeeper-port", type=click.IntRange(0, 65535), default=0, show_default=True,
              help="Port of ZooKeeper. 0 picks a free port.")  # fmt: skip
@click.option("-s", "--set", "settings", multiple=True, metavar="NAME=VALUE", callback=assignments,
              help="A setting for all brokers; see `pylogd settings`.")  # fmt: skip
@click.option("--secure", is_flag=True, help="Encrypt all connections, and let in those only that show a certificate "
              "or, on further ports, know a password: makes an authority, certificates, users with passwords, and "
              "configurations for clients.")  # fmt: skip
def up(count: int, data: Path, port: int, zookeeper_port: int, settings: dict[str, str], secure: bool) -> None:
    """Run a test cluster on this machine.

    Starts brokers and ZooKeeper, and stops them at Ctrl-C or SIGTERM.

    Standard output has a line for ZooKeeper and for each broker, with its process id, then the bootstrap servers and
    commands to try. With --secure, admin and alice have certificates, bob and carol passwords; admin may do everything,
    and the others may use topics and groups whose names begin with their own, such as bob-demo.
    If a broker ends, by kill -9 for instance, that is reported and the others continue. Not for production. Needs Java
    and ZooKeeper's jars, which `pip install 'pylogd-broker[zookeeper]'` brings.
    """
    interrupted = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: interrupted.set())
    note(f"starting ZooKeeper and {count} brokers in {data.absolute()}")
    with _cluster(secure)(data, count, port=port, zookeeper_port=zookeeper_port, settings=settings) as running:
        print_line(f"zookeeper at {running.zookeeper.hosts}, pid {running.zookeeper.pid}")
        there = dict(running.brokers)
        for node, broker in there.items():
            print_line(f"broker {node} at {broker.address}, pid {broker.pid}, log {broker.log_path}")
        if running.sasl_bootstrap:
            print_line(f"bootstrap servers with passwords (SASL_SSL): {running.sasl_bootstrap}")
        print_line(f"bootstrap servers: {running.bootstrap}")
        if secure:
            print_line(f"client configurations: {running.folder / 'tls'}/*.properties")
        for hint in running.hints():
            print_line(f"try: {hint}")
        sys.stdout.flush()
        zookeeper = True
        while there and not interrupted.wait(_CHECK_SECONDS):
            for node, broker in list(there.items()):
                if broker.exit_code is not None:
                    del there[node]
                    note(f"broker {node} (pid {broker.pid}) has ended: {_exit_text(broker.exit_code)}; "
                         f"{len(there)} brokers continue")  # fmt: skip
            if zookeeper and not running.zookeeper.running:
                zookeeper = False
                note("ZooKeeper has ended: brokers serve what they lead, but leaders and topics can't change any more")
        note("stopping")
    if not interrupted.is_set():
        raise click.ClickException("all brokers have ended")


def _cluster(secure: bool) -> type[LocalCluster]:
    if not secure:
        return LocalCluster
    try:
        from pylogd.local.secure import SecureCluster  # noqa: PLC0415 - needs an optional package
    except ImportError as error:
        raise click.ClickException(
            f"--secure needs the package cryptography ({error}): pip install 'pylogd-broker[tls]'"
        ) from None
    return SecureCluster


def _exit_text(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _parse_partition(text: str) -> tuple[str, int]:
    topic, _, index = text.rpartition(":")
    if not topic or not index.isdigit():
        raise click.BadParameter(f"{text!r} is not TOPIC:PARTITION")
    return topic, int(index)


def _labels(admin: Admin, topics: Sequence[Topic]) -> _Labels:
    """Return the labels of the brokers and topics whose settings this client may read."""
    try:
        return _Labels(admin.broker_labels(), admin.topic_labels(topic.name for topic in topics))
    except KafkaError as error:
        if error.code not in (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
            raise
        note("labels are not shown: that needs DESCRIBE_CONFIGS on the cluster and the topics")
        return _Labels({}, {})


def _misplaced(
    topics: Sequence[Topic], labels: _Labels, moving: Mapping[TopicPartition, Reassignment]
) -> list[dict[str, Any]]:
    """Return the partitions that have replicas on live brokers without the label of the topic.

    moving: the reassignments in progress. Replicas that will be removed are not counted.
    """
    rows = []
    for topic in topics:
        label = labels.topics.get(topic.name)
        for one in topic.partitions if label else ():
            move = moving.get(TopicPartition(topic.name, one.index))
            staying = [node for node in one.replicas if move is None or node not in move.removing]
            nodes = [node for node in staying if node in labels.brokers and label not in labels.brokers[node]]
            if nodes:
                rows.append({
                    "topic": topic.name, "partition": one.index, "label": label, "replicas": list(one.replicas),
                    "misplaced": nodes,
                })  # fmt: skip
    return rows


def _eligible(admin: Admin, topics: set[str]) -> dict[TopicPartition, EligibleReplicas]:
    try:
        return admin.eligible_replicas(topics)
    except UnsupportedByBroker:
        return {}


def _partition_record(topic: Topic, one: Partition, eligible: dict[TopicPartition, EligibleReplicas]) -> dict[str, Any]:
    may_lead = eligible.get(TopicPartition(topic.name, one.index), _NOT_ELIGIBLE)
    return {
        "topic": topic.name,
        "partition": one.index,
        "leader": one.leader,
        "replicas": list(one.replicas),
        "isr": list(one.isr),
        "elr": list(may_lead.eligible),
        "last_known_elr": list(may_lead.last_known),
    }


def _silent_record(broker: Broker) -> dict[str, Any]:
    """Return the record of a broker that does not answer."""
    unknown = dict.fromkeys(("directory", "partitions", "bytes", "total_bytes", "usable_bytes"))
    return {
        "broker": broker.node_id, "host": broker.host, "port": broker.port, **unknown, "state": "silent",
        "error": None, "cordoned": None,
    }  # fmt: skip


def _directory_record(d: LogDir, broker: Broker) -> dict[str, Any]:
    return {
        "broker": d.broker, "host": broker.host, "port": broker.port, "directory": d.path, "partitions": len(d.sizes),
        "bytes": sum(d.sizes.values()), "total_bytes": d.total_bytes, "usable_bytes": d.usable_bytes,
        "state": log_dir_state(d), "error": d.error,
        "cordoned": d.cordoned,
    }  # fmt: skip
