from collections.abc import Callable

from typing_extensions import Buffer

def take_requests(
    frame: Buffer | None,
    chunk: Buffer,
    at: int,
    most: int,
    max_request: int,
    shape: tuple[int, bytes, bytes],
    limits: tuple[int, ...],
    log: tuple[int, ...],
    due: Callable[[int, int, int], bool],
    /,
) -> (
    tuple[
        int,
        int,
        bytes,
        bytes,
        int,
        int,
        int,
        int,
        list[tuple[int, int, int, int]],
        list[tuple[int, int, int, int, int, int]],
    ]
    | None
): ...
def matches(frame: Buffer, shape: tuple[int, bytes, bytes], /) -> bool: ...
def checksum(data: Buffer, tables: bool, /) -> int: ...
def fetch_offset(known: bytes, at: int, data: bytes, /) -> int: ...
def fetch_head(
    body: bytes, data: bytes, high_watermark: int, last_stable_offset: int, log_start: int, size: int, /
) -> bytes: ...
