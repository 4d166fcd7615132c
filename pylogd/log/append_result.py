"""The result of an append to a log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple


class AppendResult(NamedTuple):
    """The result of an append.

    base_offset, last_offset: of the records. log_append_time: -1 if the time stamps are the client's.
    duplicate: whether the batch had been appended before; the offsets are those of that time.
    """

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool = False


#: `AppendResult` from a tuple of all fields, at a third of the cost of a call with them.
new_append_result: Callable[[tuple[int, int, int, int, bool]], AppendResult] = partial(tuple.__new__, AppendResult)
