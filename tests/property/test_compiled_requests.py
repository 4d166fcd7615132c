"""The compiled functions give what Python gives, for any bytes, and refuse bad arguments."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.wire.fast import compiled
from pylogd.wire.records import crc32c
from tests.fakes.parts import batch
from tests.fuzz.compiled import SOURCES, agree, agree_on_fetch, agree_on_sending
from tests.fuzz.record_loops import agree_on_records, agree_on_rows
from tests.fuzz.repeated_batches import RepeatedBatches
from tests.fuzz.repeated_writes import OUTCOMES, RepeatedWrites
from tests.fuzz.repeats import RepeatedFetches
from tests.fuzz.tls_loops import agree_on_receiving, agree_on_sending_records

fast = pytest.importorskip("pylogd.wire.fast._fast", reason="there was no compiler")


@pytest.fixture(scope="module", autouse=True)
def compiled_functions() -> Iterator[None]:
    """Use the compiled functions, also where PYLOGD_PURE_PYTHON turns them off."""
    with patch.object(compiled, "fast", fast):
        yield


_SHAPE = (11, b"common", bytes(40))
_LIMITS = (1 << 20, 1 << 30, 1 << 31, 1 << 50, 1 << 50, 1 << 50, 0)
_LOG = (100, 0, 0, 0, 0, 4096, 0, 0, 0)
_ARGUMENTS: tuple[Any, ...] = (b"frame", b"chunk", 0, 1, 1 << 20, _SHAPE, _LIMITS, _LOG, lambda *_: True)


@settings(max_examples=800, deadline=None)
@given(st.integers(0, 1 << 40))
def test_it_gives_what_python_gives(number: int) -> None:
    agree(number, fast)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 1 << 40))
def test_fetches_are_read_and_answered_as_by_python(number: int) -> None:
    agree_on_fetch(number, fast)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 40))
def test_what_is_sent_is_in_the_file(number: int) -> None:
    agree_on_sending(number, pytest.importorskip("pylogd.broker.log._residency", reason="there was no compiler"))


@pytest.fixture(scope="module")
def repeats() -> Iterator[RepeatedFetches]:
    with RepeatedFetches() as made:
        yield made


@settings(max_examples=500, deadline=None)
@given(number=st.integers(0, 1 << 40))
def test_repeated_fetches_are_answered_as_by_python(repeats: RepeatedFetches, number: int) -> None:
    repeats.agree(number, pytest.importorskip("pylogd.broker.api.fast._repeated", reason="there was no compiler"))


@pytest.fixture(scope="module")
def batches() -> Iterator[RepeatedBatches]:
    with RepeatedBatches() as made:
        yield made


@settings(max_examples=500, deadline=None)
@given(number=st.integers(0, 1 << 40))
def test_repeated_batches_are_appended_as_by_python(batches: RepeatedBatches, number: int) -> None:
    batches.agree(number, pytest.importorskip("pylogd.broker.api.fast._repeated", reason="there was no compiler"))


@pytest.fixture(scope="module")
def writes() -> Iterator[RepeatedWrites]:
    with RepeatedWrites() as made:
        yield made


@settings(max_examples=200, deadline=None)
@given(number=st.integers(0, 1 << 40))
def test_repeated_batches_are_written_to_files_as_by_python(writes: RepeatedWrites, number: int) -> None:
    writes.agree(number, pytest.importorskip("pylogd.broker.api.fast._repeated", reason="there was no compiler"))


def test_compiled_writes_end_in_every_way(writes: RepeatedWrites) -> None:
    """Also those that the system refuses, after which no exception is left behind."""
    module = pytest.importorskip("pylogd.broker.api.fast._repeated", reason="there was no compiler")
    before, kept = Counter(writes.outcomes), _system_errors()
    taken = sum(writes.agree(number, module) for number in range(300))
    assert taken > 50
    assert all((writes.outcomes - before)[outcome] for outcome in OUTCOMES), writes.outcomes - before
    assert _system_errors() <= kept + len(writes.sides)  # a directory that is offline keeps its error


def _system_errors() -> int:
    gc.collect()
    return sum(isinstance(one, OSError) for one in gc.get_objects())


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 40))
def test_records_and_rows_are_taken_as_by_python(number: int) -> None:
    loops = pytest.importorskip("pylogd.wire._speedups", reason="there was no compiler")
    agree_on_records(number, loops)
    agree_on_rows(number, loops)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 40))
def test_records_of_tls_are_received_and_sent_as_by_python(number: int) -> None:
    loops = pytest.importorskip("pylogd.link._tls_records", reason="there was no compiler")
    agree_on_receiving(number, loops)
    agree_on_sending_records(number, loops)


def test_every_compiled_module_is_fuzzed() -> None:
    package = Path(__file__).parents[2] / "pylogd"
    assert set(SOURCES.values()) == set(package.rglob("*.c"))


@pytest.mark.parametrize(
    ("function", "arguments", "error"),
    [
        ("fetch_offset", (b"r" * 40, 12), TypeError),
        ("fetch_offset", (bytearray(40), 12, b"r" * 40), TypeError),
        ("fetch_offset", (b"r" * 40, 12, memoryview(b"r" * 40)), TypeError),
        ("fetch_offset", (b"r" * 40, "12", b"r" * 40), TypeError),
        ("fetch_offset", (b"r" * 40, 11, b"r" * 40), ValueError),
        ("fetch_offset", (b"r" * 40, 33, b"r" * 40), ValueError),
        ("fetch_offset", (b"", 12, b"r" * 40), ValueError),
        ("fetch_offset", (b"r" * 40, 1 << 70, b"r" * 40), OverflowError),
        ("fetch_head", (bytes(63), b"r" * 12, 0, 0, 0), TypeError),
        ("fetch_head", (bytes(63), b"r" * 11, 0, 0, 0, 0), TypeError),
        ("fetch_head", (bytes(62), b"r" * 12, 0, 0, 0, 0), TypeError),
        ("fetch_head", (bytes(63), b"r" * 12, 0, None, 0, 0), TypeError),
        ("fetch_head", (bytes(63), b"r" * 12, 0, 1 << 63, 0, 0), OverflowError),
        ("fetch_head", (bytes(63), b"r" * 12, 0, 0, 0, -1), ValueError),
        ("fetch_head", (bytes(63), b"r" * 12, 0, 0, 0, (1 << 31) - 50), ValueError),
    ],
)
def test_bad_arguments_of_fetches_raise(function: str, arguments: tuple[object, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        getattr(fast, function)(*arguments)


@given(st.binary(max_size=100) | st.binary(min_size=3000, max_size=3100), st.integers(0, 8))
def test_checksums_are_those_of_the_library(data: bytes, skipped: int) -> None:
    part = memoryview(data)[skipped:]
    assert fast.checksum(part, False) == fast.checksum(part, True) == crc32c(part)


@pytest.mark.parametrize(
    ("number", "value", "error"),
    [
        (0, "text", TypeError),
        (1, None, TypeError),
        (2, -1, ValueError),
        (2, 6, ValueError),
        (2, 1 << 70, OverflowError),
        (3, 257, ValueError),
        (4, "much", TypeError),
        (5, (11, b"common"), TypeError),
        (5, (11, b"common", "text"), TypeError),
        (5, (11, b"common", bytes(32)), ValueError),
        (5, (8, b"common", bytes(33)), ValueError),
        (5, (7, b"common", bytes(27)), ValueError),
        (5, (3, b"common", bytes(19)), ValueError),
        (5, (1 << 70, b"common", bytes(40)), OverflowError),
        (6, _LIMITS[1:], TypeError),
        (6, (*_LIMITS[:6], 1 << 64), OverflowError),
        (6, (*_LIMITS[:4], -1, 0, 0), ValueError),
        (7, list(_LOG), TypeError),
        (7, (-1, *_LOG[1:]), ValueError),
        (7, (100, -1, *_LOG[2:]), ValueError),
    ],
)
def test_bad_arguments_raise(number: int, value: object, error: type[Exception]) -> None:
    assert fast.take_requests(*_ARGUMENTS) is None
    with pytest.raises(error):
        fast.take_requests(*_ARGUMENTS[:number], value, *_ARGUMENTS[number + 1 :])
    with pytest.raises(TypeError):
        fast.take_requests(*_ARGUMENTS[:number])


def _frame(records: bytes) -> bytes:
    """Return a request of `_SHAPE`."""
    return (11).to_bytes(4, "big") + bytes(4) + b"common" + bytes([len(records) + 1]) + records + bytes(3)


_ACCEPTED = (1 << 20, 1 << 30, (1 << 63) - 1, 1 << 60, 1 << 60, 1 << 60, 0)


def test_an_error_of_the_one_who_is_asked_is_passed_on() -> None:
    frame = _frame(batch(b"v", producer_id=1, producer_epoch=0, base_sequence=0))
    arguments = [frame, *_ARGUMENTS[1:6], _ACCEPTED, _LOG]
    assert fast.take_requests(*arguments, lambda *asked: asked == (1, 0, 0))[0] == 1
    assert fast.take_requests(*arguments, lambda *asked: False) is None
    with pytest.raises(ZeroDivisionError):
        fast.take_requests(*arguments, lambda *_: 1 // 0)


def test_no_offset_is_beyond_64_bits() -> None:
    for offset, taken in (((1 << 63) - 2, True), ((1 << 63) - 1, False)):
        log = (100, offset, *_LOG[2:])
        found = fast.take_requests(_frame(batch(b"v")), *_ARGUMENTS[1:6], _ACCEPTED, log, lambda *_: True)
        assert (found is not None) is taken


@pytest.mark.skipif(sys.version_info < (3, 12), reason="each interpreter has a lock of its own from 3.12 on")
def test_it_can_be_imported_in_an_interpreter_with_its_own_lock() -> None:
    """By its file: the package needs modules of other projects that can't be imported there."""
    load = f"sys.path.insert(0, {str(Path(fast.__file__).parent)!r}); import _fast; print(_fast.checksum(b'a', True))"
    module = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    code = f"import {module} as i; i.run_string(i.create(), {'import sys; ' + load!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) == crc32c(b"a")
