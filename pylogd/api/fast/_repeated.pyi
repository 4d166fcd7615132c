from collections.abc import Callable
from typing import Any

from pylogd.wire.session import DirectOutput, RepeatReply

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
