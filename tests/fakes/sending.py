"""Send slices of logs as a connection does, without one."""

from __future__ import annotations

from pylogd.broker.cache.ranges import BlockSlice
from pylogd.broker.log.files import FileSlice


def sent(records: FileSlice | None, most: int = 1 << 20) -> bytes | None:
    """Return the bytes that a client would get, sent at most `most` at a time; None for no slice.

    They end early where the file does: the client's connection would be aborted.
    """
    if not isinstance(records, BlockSlice):
        return None if records is None else records.read()
    copied = records.copy()
    if copied is not None:
        return copied
    parts: list[bytes] = []
    at, end = records.position, records.position + records.length
    while at < end:
        part = b"".join(records.views(at, min(end - at, most)))
        if not part:
            records.load(at, end - at)
            part = b"".join(records.views(at, min(end - at, most)))
        if not part:
            break
        assert len(part) <= end - at
        parts.append(part)
        at += len(part)
    return b"".join(parts)
