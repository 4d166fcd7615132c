"""The bytes in protocol/README.md: each hex block is one frame of the conversation that the text describes."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest

from pylogd.wire import schema
from pylogd.wire.headers import read_request_header
from pylogd.wire.messages import APIS
from pylogd.wire.records import BatchHeader, crc32c

README = schema.protocol_directory().joinpath("README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```hex\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
FRAMES = [bytes.fromhex("".join(line.split("  ")[0] for line in block.splitlines())) for block in BLOCKS]
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")


def conversation() -> list[tuple[Any, Any]]:
    """Return the requests and their responses, decoded."""
    pairs = []
    for request, response in zip(FRAMES[::2], FRAMES[1::2], strict=True):
        for frame in (request, response):
            assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
        key, version, correlation_id, _client_id, body_at = read_request_header(memoryview(request)[4:])
        at = 4 + body_at + (schema.request_header_version(key, version) == 2)
        behind = 8 + schema.response_header_version(key, version)
        assert struct.unpack_from(">i", response, 4)[0] == correlation_id
        pairs.append(
            (
                schema.request_codec(key, version).decode(request[at:]),
                schema.response_codec(key, version).decode(response[behind:]),
            )
        )
    return pairs


def test_the_conversation() -> None:
    names = [type(message).__name__ for pair in conversation() for message in pair]
    apis = ["ApiVersions", "Metadata", "Produce", "Fetch"]
    assert names == [name + role for name in apis for role in ("Request", "Response")]


def test_the_batch() -> None:
    sent = conversation()[2][0].topic_data[0].partition_data[0].records
    read = conversation()[3][1].responses[0].partitions[0].records
    for batch in (sent, read):
        header = BatchHeader._make(BATCH_HEADER.unpack_from(batch))
        assert header.crc == crc32c(batch[21:])
        assert header.batch_length == len(batch) - 12
        assert (header.magic, header.record_count, header.last_offset_delta) == (2, 2, 1)
    assert bytes(sent[16:]) == bytes(read[16:])


@pytest.mark.parametrize("info", APIS.values(), ids=lambda info: info.name)
def test_the_table_of_apis(info: Any) -> None:
    low, high = info.min_version, info.max_version
    versions = f"{low} to {high}" if high > low else f"{low}"
    about = schema.load_schema(info.key)["about"]
    row = f"| {info.key} | [{info.name}](apis/{info.module}.json) | {versions} | {info.flexible_from} | {about} |"
    assert row in README


def test_links_have_targets() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line[3:].lower()).replace(" ", "-")
        for line in README.splitlines()
        if line.startswith("## ")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", README)) == headings
