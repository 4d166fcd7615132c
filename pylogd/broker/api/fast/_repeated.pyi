from collections.abc import Callable
from typing import Any

from pylogd.wire.session import DirectOutput, RepeatedBatch, RepeatReply, ServerSession

def answer_repeated(
    broker: Any,
    by_id: dict[tuple[bytes, int], Any],
    requests: list[int],
    permission: tuple[Any, Any],
    otherwise: Callable[[Any, bytes, DirectOutput], RepeatReply | None],
    connection: Any,
    data: bytes,
    output: DirectOutput,
    /,
) -> RepeatReply | None: ...
def append_repeated(
    broker: Any,
    by_id: dict[tuple[bytes, int], Any],
    by_name: dict[tuple[str, int], Any],
    internal: frozenset[str],
    permission: tuple[Any, Any],
    otherwise: Callable[[Any, bytes, ServerSession], RepeatedBatch | None],
    failed: Callable[[Any, bytes, ServerSession, Any, Exception], RepeatedBatch | None],
    connection: Any,
    data: bytes,
    session: ServerSession,
    /,
) -> RepeatedBatch | None: ...
