from collections.abc import Sequence
from typing import Any, TypeVar

from typing_extensions import Buffer

T = TypeVar("T", bound=tuple[Any, ...])

def decode_records(
    data: Buffer, count: int, base_offset: int, base_timestamp: int, topic: str, partition: int, type: type[T],
    stamp: int | None, /,
) -> list[T]: ...
def measure(
    data: Buffer, count: int, first: int, base_timestamp: int, /
) -> tuple[int, int, int, int, int, int, int, int, int]: ...
def fill(
    data: Buffer, count: int, first: int, base_offset: int, base_timestamp: int, stamp: int | None, row: int,
    offsets: Buffer, timestamps: Buffer, key_ends: Buffer, key_valid: Buffer, keys: Buffer,
    value_ends: Buffer, value_valid: Buffer, values: Buffer, /,
) -> int: ...
def fill_headers(
    data: Buffer, count: int, first: int, row: int, list_ends: Buffer, key_ends: Buffer, key_valid: Buffer,
    keys: Buffer, value_ends: Buffer, value_valid: Buffer, values: Buffer, /,
) -> int: ...
def count_stamps(
    data: Buffer, count: int, first: int, base_offset: int, base_timestamp: int, stamp: int | None, name: bytes,
    width: int, latest: int, /,
) -> tuple[
    list[tuple[int, str | None, str | None, int, int, int, int, bytes | None]],
    list[tuple[int, list[bytes | None]]],
    int, int, int,
]: ...
def murmur2(data: Buffer, /) -> int: ...
def append_zeros(value: int, size: int, /) -> int: ...
def encode_records(records: Sequence[Sequence[Any]], base_timestamp: int, /) -> bytes: ...
def inspect_records(
    data: Buffer, count: int, base_timestamp: int, earliest: int, latest: int, /
) -> tuple[int, str | None, int, int, int, list[int], int, list[int]]: ...
def batch_is_valid(batch: Buffer, earliest: int, /) -> bool: ...
def skip_batches(window: Buffer, offset: int, beyond: int, /) -> int: ...
