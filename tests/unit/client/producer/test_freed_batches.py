"""What was delivered is freed at once, not by the garbage collector: there may be thousands of batches a second."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from pylogd.client import Producer
from pylogd.client.core.call import Call
from pylogd.client.core.producer.accumulator import Batch
from tests.fakes.broker import FakeBroker


@pytest.mark.parametrize("settings", [{}, {"acks": 0, "idempotence": False}])
def test_batches_and_requests_are_freed_without_a_collection(settings: dict[str, Any]) -> None:
    gc.collect()
    before = _alive()
    gc.disable()
    try:
        with FakeBroker() as server, Producer(server.address, **settings) as producer:
            for number in range(50):
                producer.send("t", b"%d" % number, on_delivery=lambda _: None)
                producer.flush()
            assert _alive() <= before + 3  # what the last request and its thread's frames have
    finally:
        gc.enable()


def _alive() -> int:
    return sum(isinstance(each, (Batch, Call)) for each in gc.get_objects())
