"""The stored corpus and the seeds of the fuzz targets, replayed without a fuzzer."""

from __future__ import annotations

import pytest

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS, codec_of


@pytest.mark.parametrize("target", TARGETS)
def test_no_stored_input_breaks_its_target(target: str) -> None:
    stored = corpus.stored(target)
    assert len(stored) > 50, "the corpus is lost"
    for data in stored:
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_no_seed_breaks_its_target(target: str) -> None:
    seeds = corpus.seeds(target)
    assert seeds
    for data in seeds:
        TARGETS[target](data)


def test_seeds_are_well_formed_messages() -> None:
    for data in corpus.seeds("messages"):
        codec = codec_of(data)
        assert codec is not None
        codec.decode(data[2:])
