"""Measure how long single requests hold a broker's reactor: `python -m tests.extreme.held [--results FILE]`.

Two tables: the attacks that once cost a broker seconds or hundreds of megabytes, sent literally; and for each API the
largest requests within the bounds, on a broker with a topic of 10,000 partitions, and as many ACLs, quotas, users and
groups as such requests make. Held is the processor time of the longest turn of the reactor (`turns`), so other load on
the machine does not count. Exit status: 1 if any request holds the reactor longer than `MOST_MS`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from pylogd.base.limits.elements import NARROW
from pylogd.broker.api.registry import REGISTRATIONS
from pylogd.broker.security.acl_filters import MOST_MATCHING
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from pylogd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from pylogd.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from pylogd.wire.messages.create_acls import AclCreation, CreateAclsRequest
from pylogd.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pylogd.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from pylogd.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pylogd.wire.messages.describe_acls import DescribeAclsRequest
from pylogd.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from pylogd.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from pylogd.wire.messages.elect_leaders import ElectLeadersRequest
from pylogd.wire.messages.list_groups import ListGroupsRequest
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.extreme import attacks, coordinators
from tests.extreme.access import Access
from tests.extreme.asking import Attacker, End, Outcome
from tests.extreme.attacks import encoded
from tests.extreme.brokers import OpenBroker
from tests.extreme.messages import Extreme, Sizes, Variant, variants
from tests.extreme.state import TOPIC, Known, begin_transaction, make_doomed, prepare
from tests.extreme.turns import Turn, Turns
from tests.pages import circumstances, write_page
from tests.rawclient import RawClient, check_serves, memory, reset_peak

MOST_MS: Final = 50.0
_PATIENCE: Final = 30.0  # seconds: what takes longer is given up, and noted as such
_BRIEFLY: Final = 2.0  # the same of an answer that may be late on purpose
_MOST_DATA: Final = 16 << 20  # bytes of a field
_WIDE: Final = "wide"
_PARTITIONS: Final = 10_000
_ELEMENTS: Final = 19_990  # `request.max.elements`, less those around them
_IN_TRANSACTIONS: Final = (
    ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT,
)  # fmt: skip
_SMALL: Final = 300  # elements and partitions where only some APIs are measured
_GROUPS: Final = 2_000
_TRANSACTIONAL_IDS: Final = 10_000
_ENTITIES: Final = 1_000  # of quotas and credentials, each of which takes some milliseconds to write
_SETTINGS: Final = {
    "max.partitions.per.request": str(_PARTITIONS),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


class Measured(NamedTuple):
    """What a request cost.

    held: of the longest turn, ms; collecting: what of it the garbage collector did. turns: how many took over
    `MOST_MS`. peak: memory, MB.
    """

    what: str
    held: float
    collecting: float
    turns: int
    outcome: Outcome
    peak: float


class Meter:
    """Sends requests to a broker and measures."""

    def __init__(self, broker: OpenBroker, turns: Turns) -> None:
        self._broker = broker
        self._turns = turns
        self.attacker = Attacker(broker.admin)

    def measure(self, request: Extreme, patience: float = _PATIENCE) -> Measured:
        """Send a request, and wait for its answer."""
        reset_peak(self._broker.pid)
        self._turns.new()
        outcome = self.attacker.ask(request, patience)
        return self._measured(str(request), outcome)

    def measure_while(self, what: str, act: Callable[[], contextlib.AbstractContextManager[None]]) -> Measured:
        """Measure what an attack of many requests costs."""
        reset_peak(self._broker.pid)
        self._turns.new()
        begun = time.monotonic()
        with act():
            check_serves(self._broker.address)
        return self._measured(what, Outcome(End.ANSWERED, 0, time.monotonic() - begun))

    def _measured(self, what: str, outcome: Outcome) -> Measured:
        check_serves(self._broker.address)  # the turn of the answer has ended
        found = self._turns.new()
        over = sum(turn.held > MOST_MS for turn in found)
        longest = max(found, default=Turn(0.0, 0.0))
        return Measured(what, *longest, over, outcome, memory(self._broker.pid, "VmHWM"))


@contextlib.contextmanager
def broker(settings: dict[str, str]) -> Iterator[tuple[OpenBroker, Meter]]:
    """Run a broker whose turns are measured."""
    with tempfile.TemporaryDirectory(prefix="pylogd-held-") as name:
        folder = Path(name)
        file = folder / "turns"
        made = OpenBroker(folder, settings, prefix=[sys.executable, "-m", "tests.extreme.turns", str(file)])
        try:
            yield made, Meter(made, Turns(file))
        finally:
            made.kill()


# The attacks of the table ---------------------------------------------------------------------------------------------


def a_group_with_a_long_name(_: Known, __: float) -> Extreme:
    return encoded(ListGroupsRequest(["x" * 32_000]), 4, "a state of 32 KB")


def commit_for_a_long_group(_: Known, __: float) -> Extreme:
    offsets = [OffsetCommitRequestPartition(0, 1)]
    request = OffsetCommitRequest("g" * 32_000, topics=[OffsetCommitRequestTopic(TOPIC, partitions=offsets)])
    return encoded(request, 7, "a group id of 32 KB")


def write_to_an_internal_topic(known: Known, __: float) -> Extreme:
    data = [TopicProduceData("__consumer_offsets", partition_data=[PartitionProduceData(0, known.batch)])]
    return encoded(ProduceRequest(None, -1, 5000, data), 9, "to __consumer_offsets, as __admin_client")


class Row(NamedTuple):
    """A row of the table. before: at commit 5b33807. attack, scale: of one request; of many if `many`."""

    about: str
    before: str
    attack: Any
    scale: float = 1.0
    many: bool = False


ROWS: Final = (
    Row("DescribeConfigs, one broker 4,000 times", "held 6.6 s, 75 MB answer, 1 GB", attacks.describe_one_broker_often),
    Row("DescribeGroups, one group 400 times", "360 MB answer, 0.8 GB", attacks.describe_one_group_often, 0.04),
    Row("OffsetFetch, one group 1,000 times", "402 MB answer, 0.9 GB", attacks.offsets_of_one_group_often, 0.1),
    Row("ListOffsets, 20 times a time, in a zstd batch", "held 11.2 s", attacks.times_in_a_packed_batch),
    Row("ListOffsets, 100,000 times the largest time", "held 16.5 s", attacks.largest_times),
    Row("ListOffsets, as many of them as are allowed", "", attacks.largest_times, 0.1999),
    Row("FindCoordinator, a key of 8 MB", "held 3.3 s", attacks.a_coordinator_of_a_long_key),
    Row("OffsetCommit, a group id of 32 KB", "held 13 ms", commit_for_a_long_group),
    Row("ListGroups, a filter of 32 KB", "", a_group_with_a_long_name),
    Row("Fetch, a session of 400,000 partitions", "held 9 s, kept 100 MB", attacks.a_session_of_unknown_partitions),
    Row("Fetch, a session of 19,000 partitions", "", attacks.a_session_of_unknown_partitions, 0.0475),
    Row("12 unfinished frames of 90 MB", "1.2 GB", attacks.unfinished_frames, many=True),
    Row("2,000 connections at a byte a second", "64 KB each, for ever", attacks.slow_senders, many=True),
    Row("JoinGroup, 900,000 protocols", "239 MB", attacks.a_member_with_many_protocols),
    Row("JoinGroup, 900 protocols", "", attacks.a_member_with_many_protocols, 0.001),
    Row("20,000 producer ids", "1.1 KB each, for a day", attacks.producer_ids, 0.2, many=True),
    Row("IncrementalAlterConfigs, max.connections=0", "nobody gets in", attacks.no_connections_for_anybody),
    Row("Fetch, a forged replica id", "acks=all answered, a record lost", attacks.a_forged_follower),
    Row("Produce to __consumer_offsets", "written", write_to_an_internal_topic),
    Row("Heartbeat, the largest generation", "raises in a timer", attacks.a_generation_out_of_range),
)  # fmt: skip


def attack_literally() -> list[tuple[Row, Measured]]:
    """Send each attack of the table to a broker of its own. Return what it cost."""
    measured = []
    for row in ROWS:
        with broker({}) as (running, meter):
            with RawClient(running.address) as client:
                known = prepare(client)
            if row.many:
                access = Access(running.address)
                found = meter.measure_while(row.about, lambda row=row, access=access: row.attack(access, row.scale))  # type: ignore[misc]
            else:
                found = meter.measure(row.attack(known, row.scale))
            check_log(running)
        measured.append((row, found))
        print(f"{row.about}: {found.held:.0f} ms, {found.peak:.0f} MB, {found.outcome}", file=sys.stderr)
    return measured


# Every API ------------------------------------------------------------------------------------------------------------


def fill(client: RawClient, count: int, partitions: int) -> Iterator[Extreme]:
    """Yield requests that make as much state as one request may: each is measured too."""
    yield encoded(CreateTopicsRequest([CreatableTopic(_WIDE, partitions, 1)], 300_000), 7, f"{partitions:,} partitions")
    yield encoded(
        CreateTopicsRequest([CreatableTopic(f"narrow-{n}", 1, 1) for n in range(1000)], 300_000), 7, "1,000 topics"
    )
    acls = [AclCreation(2, f"topic-{n}", 3, f"User:user-{n}", "*", 2, 3) for n in range(count)]
    yield encoded(CreateAclsRequest(acls), 3, f"{count:,} for different topics")
    yield encoded(DescribeAclsRequest(1, None, 1, None, None, 1, 1), 3, "all")
    quotas = [
        EntryData([EntityData("user", f"user-{n}")], [OpData("producer_byte_rate", 1e6)]) for n in range(_ENTITIES)
    ]
    yield encoded(AlterClientQuotasRequest(quotas), 1, f"{_ENTITIES:,} users")
    yield encoded(DescribeClientQuotasRequest(), 1, "all")
    users = [ScramCredentialUpsertion(f"user-{n}", 2, 16_384, bytes(16), bytes(64)) for n in range(_ENTITIES)]
    yield encoded(AlterUserScramCredentialsRequest(upsertions=users), 0, f"{_ENTITIES:,} users, 16,384 iterations")
    yield encoded(DescribeUserScramCredentialsRequest(None), 0, "all")
    for number in range(_GROUPS):
        offsets = [OffsetCommitRequestPartition(0, 1)]
        topics = [OffsetCommitRequestTopic(TOPIC, partitions=offsets)]
        client.request(OffsetCommitRequest(f"g-{number}", topics=topics), 7)
    yield encoded(ListGroupsRequest(), 4, "all")
    yield encoded(MetadataRequest(None), 12, "all")


def clear(count: int) -> Iterator[Extreme]:
    """Yield requests that delete as much as one request may."""
    filters = [DeleteAclsFilter(2, f"topic-{n}", 3, None, None, 1, 1) for n in range(count)]
    yield encoded(DeleteAclsRequest(filters[:1] * count), 3, f"one filter {count:,} times")
    yield encoded(DeleteAclsRequest([replace_principal(n) for n in range(count)]), 3, f"{count:,} filters of users")
    matching = [DeleteAclsFilter(2, f"other-{n}", 2, None, None, 1, 1) for n in range(MOST_MATCHING)]
    yield encoded(DeleteAclsRequest(matching), 3, f"{MOST_MATCHING} filters that match")
    yield encoded(DeleteAclsRequest(filters), 3, f"{count:,} filters of topics")
    targets = [ReassignablePartition(n, [1]) for n in range(_PARTITIONS)]
    move = AlterPartitionReassignmentsRequest(60_000, topics=[ReassignableTopic(_WIDE, targets)])
    yield encoded(move, 1, f"{_PARTITIONS:,} partitions that stay")
    yield encoded(ElectLeadersRequest(0, None, 60_000), 2, "all")
    yield encoded(DeleteTopicsRequest([DeleteTopicState(_WIDE)], timeout_ms=300_000), 6, "the wide topic")
    yield encoded(
        DeleteTopicsRequest([DeleteTopicState(f"narrow-{n}") for n in range(1000)], timeout_ms=300_000), 6,
        "1,000 topics",
    )  # fmt: skip


def replace_principal(number: int) -> DeleteAclsFilter:
    """Return a filter that selects the ACLs of a user for topics of any name."""
    return DeleteAclsFilter(2, None, 1, f"User:nobody-{number}", None, 1, 1)


def largest_requests(only: frozenset[str], seconds: float) -> tuple[list[Measured], list[str]]:
    """Send the largest legal requests of every API, at its last version.

    Return what they cost, and what was left out because it did not fit into so many seconds.
    """
    measured: list[Measured] = []
    left_out: list[str] = []
    end = time.monotonic() + seconds

    def note(found: Measured) -> None:
        print(f"{found.held:8.1f} ms ({found.collecting:.0f})  {found.what}: {found.outcome}", file=sys.stderr)
        measured.append(found)

    with broker(_SETTINGS) as (running, meter), RawClient(running.address) as client:
        known = replace(prepare(client), renamed={TOPIC: _WIDE})
        few = bool(only)
        for request in fill(client, _SMALL if few else _ELEMENTS, _SMALL if few else _PARTITIONS):
            note(meter.measure(request))
        known.topic_id = next(
            topic.topic_id for topic in client.request(MetadataRequest(None), 12).topics if topic.name == _WIDE
        )
        # Metadata creates thousands of topics, which are hosted for a while after the answer: it comes last.
        for key, registration in sorted(REGISTRATIONS.items(), key=lambda item: (item[0] == ApiKey.METADATA, item[0])):
            if only and registration.name not in only:
                continue
            if time.monotonic() > end:
                left_out.append(registration.name)
                continue
            for wide, narrow in large_variants(key, registration.last, known):
                if key == ApiKey.DELETE_TOPICS:
                    make_doomed(client)
                if key in _IN_TRANSACTIONS:
                    begin_transaction(client, known)
                request = wide.build()
                found = meter.measure(request, _BRIEFLY if request.may_wait else _PATIENCE)
                if found.outcome.end is End.REFUSED:  # its elements have elements, which count too
                    found = meter.measure(narrow.build(), _PATIENCE)
                note(found)
        for found in _ask_coordinators(running, meter, client, few):
            note(found)
        for request in clear(_SMALL if few else _ELEMENTS):
            note(meter.measure(request))
        check_log(running)
    return measured, left_out


def _ask_coordinators(running: OpenBroker, meter: Meter, client: RawClient, few: bool) -> Iterator[Measured]:
    partitions, ids = (_SMALL, _SMALL) if few else (_PARTITIONS, _TRANSACTIONAL_IDS)
    yield from coordinators.consumers(
        meter.measure, meter.measure_while, running.admin.connect, names=1000, topic=_WIDE
    )
    yield from coordinators.transactions(
        client, meter.measure, meter.measure_while, topic=_WIDE, partitions=partitions, ids=ids
    )


def check_log(running: OpenBroker) -> None:
    """Raise AssertionError if the broker logged an unexpected error."""
    before, traceback, after = running.log().partition("Traceback")
    assert not traceback, before[-500:] + traceback + after[:4000]


def large_variants(key: int, version: int, known: Known) -> Iterator[tuple[Variant, Variant]]:
    """Yield each request of an API that is large, and one with fewer elements for brokers that refuse it."""
    bound = _bound(key)
    most, fewer = (variants(key, version, known, Sizes(count, _MOST_DATA)) for count in (bound, bound // 3))
    for wide, narrow in zip(most, fewer, strict=True):
        if any(word in wide.about for word in (" times", " others", "bytes")):
            yield wide, narrow


def _bound(api_key: int) -> int:
    return 990 if api_key in NARROW else _ELEMENTS


# The page -------------------------------------------------------------------------------------------------------------


def report(table: list[tuple[Row, Measured]], apis: list[Measured], left_out: list[str]) -> list[str]:
    """Return the page, as Markdown."""
    lines = [
        "# How long requests hold the reactor",
        "",
        "Written by `make held`, apart from the notes at its end. Held is the processor time of the longest turn of "
        "the reactor.",
        "",
        circumstances(),
        "",
        "## Attacks that were not bounded once",
        "",
        "Each is sent literally, to a broker of its own.",
        "",
        "| request | before (5b33807) | held, ms | answer, bytes | peak, MB | how it ended |",
        "| --- | --- | --: | --: | --: | --- |",
    ]
    lines += [
        f"| {row.about} | {row.before} | {found.held:.0f} | {found.outcome.size:,} | {found.peak:.0f} | "
        f"{found.outcome.end.value} |"
        for row, found in table
    ]
    lines += [
        "",
        "## The largest legal requests of every API",
        "",
        "| request | held, ms | of that collecting garbage | turns over 50 ms | answered after, s | answer, bytes | "
        "peak, MB |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {found.what} | {found.held:.0f} | {found.collecting:.0f} | {found.turns} | {found.outcome.seconds:.1f} | "
        f"{found.outcome.size:,} | {found.peak:.0f} |"
        for found in sorted(apis, key=lambda found: -found.held)
        if found.held >= 5.0
    ]
    lines += ["", f"The other {sum(found.held < 5.0 for found in apis)} requests held it for less than 5 ms.", ""]
    if left_out:
        lines += [f"There was no time to measure: {', '.join(left_out)}.", ""]
    return lines


def main() -> int:
    """Measure, print the page, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.extreme.held", description="how long requests hold a broker")
    parser.add_argument("--results", type=Path, help="write the page to this file too")
    parser.add_argument("--only", action="append", default=[], help="only this API, with little state. Repeatable")
    parser.add_argument("--seconds", type=float, default=300.0, help="no further API is begun after this time (300)")
    options = parser.parse_args()
    apis, left_out = largest_requests(frozenset(options.only), options.seconds)
    table = [] if options.only else attack_literally()
    lines = report(table, apis, left_out)
    print("\n".join(lines))
    if options.results:
        write_page(options.results, lines)
    return int(any(found.held > MOST_MS for found in [*apis, *(found for _, found in table)]))


if __name__ == "__main__":
    sys.exit(main())
