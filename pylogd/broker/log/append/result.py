"""The result of an append to a log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple


class AppendResult(NamedTuple):
    """The result of an append.

    base_offset, last_offset: the offsets of the first and of the last record.
    log_append_time: the time stamp that the broker gave the records; -1 if they have the client's time stamps.
    duplicate: whether the batch had been appended before. The offsets are then those of the earlier append.
    """

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool = False


#: Makes an `AppendResult` of a tuple with all fields. This costs a third of a call with the fields as arguments.
new_append_result: Callable[[tuple[int, int, int, int, bool]], AppendResult] = partial(tuple.__new__, AppendResult)
