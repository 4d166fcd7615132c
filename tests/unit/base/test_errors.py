"""The error table, as Python and as the files for other languages."""

from __future__ import annotations

import json
import pickle

from kio.schema.errors import ErrorCode as KioErrorCode

from pylogd.base.errors import ERRORS, ErrorCode, KafkaError, error_for
from pylogd.wire.schema import protocol_directory


def test_the_file_for_other_languages_is_the_same() -> None:
    listed = json.loads(protocol_directory().joinpath("errors.json").read_text("utf-8"))["errors"]
    assert listed == [info._asdict() for info in ERRORS.values()]


def test_another_implementation_agrees() -> None:
    mine = {code: (info.name, info.retriable) for code, info in ERRORS.items()}
    theirs = {int(code): (code.name.upper(), code.retriable) for code in KioErrorCode}
    assert {code: mine[ErrorCode(code)] for code in theirs} == theirs


def test_every_code_has_a_text_and_numbers_have_no_gap() -> None:
    assert sorted(ERRORS) == list(range(-1, len(ERRORS) - 1))
    assert len({info.text for info in ERRORS.values()}) == len(ERRORS)


def test_unknown_codes_count_as_unknown_server_error() -> None:
    assert error_for(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error_for(32_000) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_kafka_error() -> None:
    error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert error.message == ErrorCode.NOT_LEADER_OR_FOLLOWER.text
    assert error.retriable
    named = pickle.loads(pickle.dumps(KafkaError(ErrorCode.INVALID_CONFIG, "no such setting")))
    assert (named.code, named.message, named.retriable) == (ErrorCode.INVALID_CONFIG, "no such setting", False)
    assert str(named) == "INVALID_CONFIG: no such setting"
