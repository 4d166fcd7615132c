"""Fast `struct` codecs for the two most frequent messages, Produce and Fetch; general codecs handle the rest.

Strategy: each fast codec covers the usual shape only (one topic, no tagged fields, no error text) and hands everything
else, malformed bytes included, to the general codec. Property tests prove that both agree:
`tests/property/test_fast_produce_codec.py` and `test_fast_fetch_codec.py`. `bench/` has the times before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pylogd.wire.fast import fetch, produce
from pylogd.wire.schema import Part

Decode = Callable[[memoryview], Any]
Encode = Callable[[Any], list[Part]]

_PRODUCE, _FETCH = 0, 1


def request_decoder(api_key: int, version: int, general: Decode) -> Decode:
    """Return the fast decoder of an API's requests, which falls back to `general`; or `general` if there is none."""
    if api_key == _FETCH:
        return fetch.request_decoder(version, general)
    return produce.request_decoder(version, general) if api_key == _PRODUCE else general


def response_encoder(api_key: int, version: int, general: Encode) -> Encode:
    """Return the fast encoder of an API's responses, which falls back to `general`; or `general` if there is none."""
    if api_key == _FETCH:
        return fetch.response_encoder(version, general)
    return produce.response_encoder(version, general) if api_key == _PRODUCE else general
