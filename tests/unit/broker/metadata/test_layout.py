"""The contents of nodes, and ids."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.broker.metadata.change_notes import Change, News, decode_change, encode_change
from pylogd.broker.metadata.image import (
    NO_LEADER,
    Broker,
    Endpoint,
    PartitionState,
    Topic,
    id_from_text,
    id_to_text,
    new_id,
)
from pylogd.broker.metadata.layout import (
    Assignment,
    decode_broker,
    decode_configs,
    decode_producer_block_end,
    decode_topic,
    encode_broker,
    encode_configs,
    encode_producer_block,
    encode_states,
    encode_topic,
)
from pylogd.store.errors import CorruptMetadata


def test_a_topic_is_spelled_as_kafka_spells_it() -> None:
    document = json.loads(encode_topic(Assignment(bytes(range(16)), [(1, 2), (2, 1)])))
    assert document == {
        "version": 3,
        "topic_id": "AAECAwQFBgcICQoLDA0ODw",
        "partitions": {"0": [1, 2], "1": [2, 1]},
        "adding_replicas": {},
        "removing_replicas": {},
    }


def test_states_are_spelled_as_kafka_spells_them_for_any_number_of_replicas_in_sync() -> None:
    replicas = tuple(range(1, 13))
    states = [PartitionState(index, replicas, replicas[:index], 1, 7, 9) for index in range(13)]
    states.append(PartitionState(13, replicas, (), NO_LEADER, 8, 10, (), (), None, (1,), (2,), 3, ("d",)))
    partitions = {str(index): [1, 7, list(replicas[:index]), 9] for index in range(13)}
    eligibility = {"elr": [1], "last_known_elr": [2], "last_known_leader": 3, "lost": ["d"]}
    partitions["13"] = [NO_LEADER, 8, [], 10, eligibility]
    document = {"version": 1, "controller_epoch": 4, "partitions": partitions}
    assert encode_states(4, states) == json.dumps(document, separators=(",", ":")).encode()


@given(st.binary(min_size=16, max_size=16), st.lists(st.lists(st.integers(0, 99), min_size=1), min_size=1))
def test_topics_survive_a_round_trip(topic_id: bytes, replicas: list[list[int]]) -> None:
    assert decode_topic("/t", encode_topic(Assignment(topic_id, list(map(tuple, replicas))))) == (
        Assignment(topic_id, list(map(tuple, replicas)))
    )


@given(st.dictionaries(st.text(), st.text()))
def test_settings_survive_a_round_trip(configs: dict[str, str]) -> None:
    assert decode_configs("/c", encode_configs(configs)) == configs


@pytest.mark.parametrize("host", ["a.example", "10.0.0.1", "fe80::1"])
@pytest.mark.parametrize("rack", [None, "r"])
def test_brokers_survive_a_round_trip(host: str, rack: str | None) -> None:
    broker = Broker(7, (Endpoint("IN", host, 1), Endpoint("OUT", "b", 65535)), rack)
    assert decode_broker("/brokers/ids/7", encode_broker(broker)) == broker


def test_blocks_and_changes_survive_a_round_trip() -> None:
    assert decode_producer_block_end(encode_producer_block(1, 5, 9)) == 9
    assert decode_producer_block_end(b"") == -1
    assert decode_change(encode_change(Change(["/a", "/b"]))) == Change(["/a", "/b"], {})
    told = {'/brokers/topics/"a/state-x': News(3, 4, b'{"version":1}')}
    assert decode_change(encode_change(Change([], told))) == Change(
        [], {path: News(3, 4, {"version": 1}) for path in told}
    )
    states = b'{"version":1,"controller_epoch":7,"partitions":{"0":[1,2,[1,2,3],4]}}'
    many = {f"/brokers/topics/{number}/state-x": News(3, 4, states) for number in range(500)}
    note = encode_change(Change(["/a"], many))
    assert len(note) < sum(map(len, many)) / 2  # the paths alone are longer
    assert decode_change(note) == Change(["/a"], {path: News(3, 4, json.loads(states)) for path in many})
    assert decode_change(note.replace(b'"compressed":"', b'"compressed":"!')) is None
    whole = b'{"version":2,"paths":["/a"],"states":{"/a":[3,4,{"version":1}]}}'  # as earlier releases tell it
    assert decode_change(whole) == Change(["/a"], {"/a": News(3, 4, {"version": 1})})


@given(
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["partitions", "topic_id", "endpoints", "config", "block_end", "paths", "0"]), inner
            )
        ),
    ).map(lambda document: json.dumps(document).encode())
)
def test_anything_else_is_reported_as_damaged(data: bytes) -> None:
    for decode in (
        lambda: decode_topic("/x", data),
        lambda: decode_configs("/x", data),
        lambda: decode_broker("/brokers/ids/1", data),
        lambda: decode_producer_block_end(data),
        lambda: decode_change(data),
    ):
        try:
            decode()
        except CorruptMetadata as error:
            assert "\n" not in str(error)[:60]


def test_new_ids() -> None:
    ids = {new_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert not any(id_to_text(raw).startswith("-") for raw in ids)
    assert all(id_from_text(id_to_text(raw)) == raw and len(id_to_text(raw)) == 22 for raw in ids)


@pytest.mark.parametrize("text", ["", "AAAA", "A" * 21 + "!", "A" * 24, "A" * 200])
def test_invalid_ids_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        id_from_text(text)


def test_internal_topics() -> None:
    assert Topic("__consumer_offsets", bytes(16), (), {}).internal
