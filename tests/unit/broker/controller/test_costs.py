"""What a decision costs: a rack of a large cluster has a replica of each of 200,000 partitions."""

from __future__ import annotations

from pylogd.broker.controller import decisions
from pylogd.broker.controller.decisions import Snapshot
from pylogd.broker.metadata.image import Broker, Endpoint, PartitionState, Topic
from pylogd.broker.metadata.layout import encode_states
from pylogd.broker.metadata.state_steps import steps_between
from tests.hotpath import instructions

_PARTITIONS = 100


def test_few_instructions_decide_on_a_partition_of_a_failed_broker_and_encode_it() -> None:
    states = tuple(PartitionState.initial(index, (1, 5, 6)) for index in range(_PARTITIONS))
    topic = Topic("t", bytes(16), states, {})
    live = Snapshot({node: Broker(node, (Endpoint("P", "h", 1),)) for node in (5, 6)})

    def decide() -> None:
        (update,) = decisions.settle_all(live, [topic], frozenset(), lambda _: 2)
        assert steps_between(1, states, update.after) is not None
        encode_states(1, update.after)

    decide()
    assert instructions(decide) / _PARTITIONS < 330
