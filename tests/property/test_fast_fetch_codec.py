"""The `struct` codec of Fetch equals the general codec, on valid bytes and on any bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pylogd.wire import fast
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.fast.fetch import FIRST_FAST, NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT
from pylogd.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ReplicaState,
    SnapshotId,
)
from pylogd.wire.schema import request_codec, response_codec

FETCH = 1
VERSIONS = range(FIRST_FAST, 19)

versions = st.sampled_from(VERSIONS)
int8 = st.integers(-(2**7), 2**7 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
ids = st.binary(min_size=16, max_size=16)


def mostly(usual: Any, others: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate `usual` in most cases, so that the fast path is taken often."""
    return st.sampled_from([True] * 9 + [False]).flatmap(lambda is_usual: st.just(usual) if is_usual else others)


def some(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(elements, min_size=1, max_size=1) | st.lists(elements, max_size=3)


@st.composite
def requests(draw: st.DrawFn, version: int) -> FetchRequest:
    """Generate requests that can be encoded at `version`, mostly of one topic."""
    partitions = st.builds(
        FetchPartition,
        int32, int32, int64, int32, int64, int32,
        mostly(bytes(16), ids) if version >= 17 else st.just(bytes(16)),
        mostly(2**63 - 1, int64) if version >= 18 else st.just(2**63 - 1),
    )  # fmt: skip
    replica = st.builds(ReplicaState, int32, int64)
    return draw(
        st.builds(
            FetchRequest,
            mostly(None, st.text(max_size=3)),
            int32 if version < 15 else st.just(-1),
            mostly(ReplicaState(), replica) if version >= 15 else st.just(ReplicaState()),
            int32, int32, int32, int8, int32, int32,
            some(st.builds(FetchTopic, st.just(""), ids, some(partitions))),
            mostly([], some(st.builds(ForgottenTopic, st.just(""), ids, some(int32)))),
            mostly("", st.text(max_size=3)),
        )
    )  # fmt: skip


@st.composite
def responses(draw: st.DrawFn, version: int) -> FetchResponse:
    """Generate responses that can be encoded at `version`, with records of sizes at which a varint grows."""
    sizes = st.integers(0, 8) | st.sampled_from([126, 127, 128, 16_382, 16_383, 16_384])
    partitions = st.builds(
        PartitionData,
        int32, int16, int64, int64, int64,
        mostly(NO_DIVERGENCE, st.builds(EpochEndOffset, int32, int64) | st.just(EpochEndOffset())),
        mostly(NO_LEADER, st.builds(LeaderIdAndEpoch, int32, int32)),
        mostly(NO_SNAPSHOT, st.builds(SnapshotId, int64, int32)),
        st.none() | mostly([], some(st.builds(AbortedTransaction, int64, int64))),
        int32,
        mostly(b"", st.none()) | sizes.map(bytes),
    )  # fmt: skip
    topics = st.builds(FetchableTopicResponse, st.just(""), ids, some(partitions))
    nodes = st.builds(NodeEndpoint, int32, st.text(max_size=3), int32, st.none() | st.text(max_size=3))
    told = mostly([], some(nodes)) if version >= 16 else st.just([])
    return draw(st.builds(FetchResponse, int32, int16, int32, some(topics), told))


def joined(parts: list[Any]) -> bytes:
    return b"".join(map(bytes, parts))


def outcome(decode: Any, body: bytes) -> Any:
    try:
        return decode(memoryview(body))
    except RemoteProtocolError:
        return "refused"


@settings(max_examples=100)
@given(version=versions, data=st.data())
def test_requests_decode_alike(version: int, data: st.DataObject) -> None:
    general = request_codec(FETCH, version)
    quick = fast.request_decoder(FETCH, version, general.decode_leniently)
    body = joined(general.encode(data.draw(requests(version))))
    for _ in range(2):  # what a follower says of itself is remembered
        assert outcome(quick, body) == outcome(general.decode_leniently, body)
    damaged = bytearray(body)
    at = data.draw(st.integers(0, len(body) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    if kind == "flip":
        damaged[at] = data.draw(st.integers(0, 255))
    elif kind == "cut":
        del damaged[at:]
    else:
        damaged.insert(at, data.draw(st.integers(0, 255)))
    assert outcome(quick, bytes(damaged)) == outcome(general.decode_leniently, bytes(damaged))


@settings(max_examples=100)
@given(version=versions, data=st.data())
def test_the_next_request_of_a_follower_is_decoded_alike(version: int, data: st.DataObject) -> None:
    """Of the same follower or another one, and without the general codec if it is of the same."""
    general, asked = request_codec(FETCH, version), 0

    def counting(body: memoryview) -> Any:
        nonlocal asked
        asked += 1
        return general.decode_leniently(body)

    quick = fast.request_decoder(FETCH, version, counting)
    replicas = [ReplicaState(node, 7) if version >= 15 else ReplicaState() for node in (1, 1, 2, 1)]
    for number, replica in enumerate(replicas):
        topics = [FetchTopic("", data.draw(ids), [FetchPartition(0, 1, data.draw(int64), 1, 0, 1 << 20)])]
        request = FetchRequest(
            "a cluster", replica_state=replica, max_wait_ms=500, session_id=5, session_epoch=number + 1, topics=topics
        )
        body = joined(general.encode(request))
        assert quick(memoryview(body)) == general.decode_leniently(memoryview(body)) == request
    assert asked == (2 if version >= 15 else 1)


def test_long_or_many_ends_of_requests_are_not_kept() -> None:
    general = request_codec(FETCH, 16)
    quick = fast.request_decoder(FETCH, 16, general.decode_leniently)
    topics = [FetchTopic("", bytes(16), [FetchPartition(0)])]
    for cluster in [*map(str, range(200)), "c" * 1000]:
        request = FetchRequest(cluster, topics=topics)
        for _ in range(2):
            assert quick(memoryview(joined(general.encode(request)))) == request
    kept: dict[bytes, Any] = quick.args[-1]  # type: ignore[attr-defined]  # it is a partial
    assert 0 < len(kept) <= 64
    assert max(map(len, kept)) < 128


@settings(max_examples=100)
@given(version=versions, body=st.binary(max_size=96))
@example(version=FIRST_FAST, body=b"")
def test_any_bytes_decode_alike(version: int, body: bytes) -> None:
    general = request_codec(FETCH, version)
    quick = fast.request_decoder(FETCH, version, general.decode_leniently)
    assert outcome(quick, body) == outcome(general.decode_leniently, body)


@settings(max_examples=100)
@given(version=versions, data=st.data())
def test_responses_encode_alike(version: int, data: st.DataObject) -> None:
    general = response_codec(FETCH, version)
    quick = fast.response_encoder(FETCH, version, general.encode)
    response = data.draw(responses(version))
    assert joined(quick(response)) == joined(general.encode(response))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_usual_messages_take_the_fast_path(version: int) -> None:
    partitions = [FetchPartition(index, 4, 17, -1, -1, 1 << 20) for index in (3, 5)]
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic_id=b"i" * 16, partitions=partitions)])
    body = memoryview(joined(request_codec(FETCH, version).encode(request)))
    assert fast.request_decoder(FETCH, version, lambda body: None)(body) == request
    records = bytearray(100)
    answers = [
        PartitionData(
            index,
            diverging_epoch=NO_DIVERGENCE,
            current_leader=NO_LEADER,
            snapshot_id=NO_SNAPSHOT,
            aborted_transactions=None,
            records=found,
        )
        for index, found in ((3, records), (5, b""))
    ]
    response = FetchResponse(responses=[FetchableTopicResponse(topic_id=b"i" * 16, partitions=answers)])
    parts = fast.response_encoder(FETCH, version, lambda response: [])(response)
    assert parts[1] is records
