"""Profiles: ready sets of settings for three kinds of clusters, each value with its reason.

`online` clusters pass messages between services, `logs` clusters collect what programs log, and `offline` clusters keep
both for HDFS and batch jobs. A value of a profile overrides the default, and is overridden by everything that an
operator sets. `docs/profiles.md` is generated from this table.

Source: the talk of Kuaishou on Kafka (QCon Beijing 2019), which has these three kinds as separate clusters. The values
are ours; the reasons cite the talk.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from pylogd.config.values import ConfigType, Setting


class Choice(NamedTuple):
    """The value of one broker setting in a profile, with the reason in one sentence."""

    name: str
    value: object
    why: str


class Profile(NamedTuple):
    """A named set of settings.

    purpose: the use of such a cluster, and its trade-offs.
    """

    name: str
    purpose: str
    choices: tuple[Choice, ...]

    @property
    def values(self) -> dict[str, object]:
        """The values by name of the setting."""
        return {choice.name: choice.value for choice in self.choices}


_MIB: Final = 2**20

_LOGS: Final = Profile(
    "logs",
    "Programs log straight to the cluster, without a file in between, and must never be held up by it. Availability "
    "for writers comes first: rather than refuse writes, the cluster loses the last records of a failed broker. The "
    "volume is high, and records are read within minutes, by streaming jobs, model training, and the mirror to the "
    "offline cluster.",
    (
        Choice("default.replication.factor", 3, "Writes continue while two of the three brokers are down."),
        Choice("min.insync.replicas", 1, "One replica in sync is enough to accept a write, also with acks=all."),
        Choice(
            "unclean.leader.election.enable",
            True,
            "If no replica in sync is left, another one takes the writes. The records that it lacks are lost; a "
            "stopped writer would lose more.",
        ),
        Choice("auto.create.topics.enable", True, "A new program can log before anybody has created its topic."),
        Choice("num.partitions", 12, "Such topics are large, and their writers and readers are many."),
        Choice(
            "log.retention.hours", 24, "Readers keep up; a day is enough to repair one. The offline cluster keeps more."
        ),
        Choice(
            "log.retention.check.interval.ms", 60_000, "At a high volume, the default's five minutes take much space."
        ),
        Choice(
            "socket.listen.backlog.size",
            4096,
            "All programs connect again at the same moment after a broker's restart.",
        ),
        Choice(
            "queued.max.request.bytes", 512 * _MIB, "Large batches of many writers arrive at once at the evening peak."
        ),
        Choice(
            "log.write.queues",
            "always",
            "A disk that hangs stops the topics on it, not the whole broker, and a full queue refuses at once instead "
            "of holding a writer up.",
        ),
        Choice(
            "log.dir.failure.timeout.ms", 10_000, "Another broker takes over from a disk that hangs after ten seconds."
        ),
        Choice(
            "log.block.cache.bytes",
            1024 * _MIB,
            "Streaming jobs find the newest records in memory, whatever others read. Raise it to what the machine has.",
        ),
        Choice(
            "lagging.consumer.throttle.enable",
            True,
            "A job that reads from the beginning must not slow the writers on its disks.",
        ),
        Choice("replica.fetch.max.bytes", 4 * _MIB, "Followers keep up with few large fetches."),
        Choice("replica.fetch.response.max.bytes", 32 * _MIB, "As the one above, for all partitions of a fetch."),
        Choice(
            "leader.imbalance.check.interval.seconds",
            60,
            "A broker that is back takes its share of the writers after a minute, not five.",
        ),
    ),
)

_ONLINE: Final = Profile(
    "online",
    "Services send each other messages through the cluster. A message that was acknowledged must not be lost, and has "
    "to arrive soon. Topics are small, and are created with intent. Producers should use acks=all.",
    (
        Choice("default.replication.factor", 3, "A broker may fail while another one is being repaired."),
        Choice("min.insync.replicas", 2, "What was acknowledged with acks=all is on two machines at least."),
        Choice(
            "unclean.leader.election.enable", False, "A partition rather waits for its replicas than loses messages."
        ),
        Choice("auto.create.topics.enable", False, "A misspelt name must not become a topic that nobody reads."),
        Choice("num.partitions", 3, "Small topics; more partitions only cost."),
        Choice("log.retention.hours", 72, "Messages are read in seconds; three days outlast a weekend's repair."),
        Choice(
            "log.segment.bytes", 256 * _MIB, "Retention works by segments, and small topics fill large ones slowly."
        ),
        Choice(
            "replica.lag.time.max.ms",
            10_000,
            "With acks=all, every write waits for a follower that is stuck until it leaves the in-sync set.",
        ),
        Choice(
            "sendfile.max.bytes", 512 * 1024, "A reader with a backlog takes shorter turns, so small answers wait less."
        ),
        Choice("fetch.max.bytes", 16 * _MIB, "The same, for the whole answer to one fetch."),
        Choice(
            "log.write.queues",
            "always",
            "A disk that hangs must not stop all services. A write takes a hop to a thread and back, which is little "
            "beside the network.",
        ),
        Choice(
            "log.dir.failure.timeout.ms", 10_000, "Another broker takes over from a disk that hangs after ten seconds."
        ),
        Choice(
            "log.block.cache.bytes",
            256 * _MIB,
            "What services are about to read stays in memory when one of them reads old messages.",
        ),
        Choice(
            "lagging.consumer.throttle.enable",
            True,
            "A service that replays days must not slow the others on its disks.",
        ),
        Choice("group.initial.rebalance.delay.ms", 500, "A service that starts gets its messages sooner."),
        Choice("offsets.topic.replication.factor", 3, "The positions of the services are as durable as the messages."),
    ),
)

_OFFLINE: Final = Profile(
    "offline",
    "What the other clusters collect ends here: a mirror writes it, jobs dump it to HDFS, and less important streaming "
    "and training jobs read it. Reads are large and mostly from disk; throughput and space count, latency does not.",
    (
        Choice("default.replication.factor", 2, "The source has the records for a while, and HDFS has them soon."),
        Choice("min.insync.replicas", 1, "The mirror continues with one replica; it can repeat what was lost."),
        Choice("num.partitions", 12, "Jobs load as many partitions in parallel."),
        Choice("log.retention.hours", 240, "A dump that failed over a long holiday can be repeated."),
        Choice("log.index.interval.bytes", 65_536, "Readers go from one end to the other and seldom seek."),
        Choice("fetch.max.bytes", 128 * _MIB, "A job reads as much as it asks for with one request."),
        Choice("sendfile.max.bytes", 8 * _MIB, "Fewer, longer turns read the disk more sequentially."),
        Choice("replica.fetch.max.bytes", 4 * _MIB, "Followers keep up with few large fetches."),
        Choice("replica.fetch.response.max.bytes", 32 * _MIB, "As the one above, for all partitions of a fetch."),
        Choice(
            "log.block.cache.bytes", 0, "Jobs read each record once, and late: memory serves them better as read-ahead."
        ),
        Choice(
            "lagging.consumer.throttle.enable", False, "All readers lag here, and nobody is to be protected from them."
        ),
        Choice("background.threads", 20, "Most reads wait for a disk, each in a thread."),
        Choice("offsets.retention.minutes", 60 * 24 * 60, "A job that runs once a month finds its position again."),
    ),
)

#: The profiles by name.
PROFILES: Final[Mapping[str, Profile]] = MappingProxyType({one.name: one for one in (_LOGS, _ONLINE, _OFFLINE)})

PROFILE: Final = Setting(
    "broker.profile",
    ConfigType.STRING,
    None,
    "A ready set of settings for a kind of cluster: `logs`, `online` or `offline`. It replaces defaults, and is "
    "overridden by all values that are set otherwise. `pylogd settings --profile NAME` lists them. (Only in pylogd; "
    "see docs/profiles.md.)",
    "Identity and addresses",
    choices=tuple(PROFILES),
    nullable=True,
)


def choices_of(setting: str) -> dict[str, Choice]:
    """Return the profiles' choices for a setting, by the profile's name."""
    return {
        profile.name: choice for profile in PROFILES.values() for choice in profile.choices if choice.name == setting
    }
