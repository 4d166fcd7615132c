"""Seconds of `make fuzz-compiled`: hostile input to the compiled functions under AddressSanitizer and UBSan."""

from __future__ import annotations

import pytest

from tests.fuzz.compiled import run_sanitized, sanitizers


@pytest.mark.skipif(not sanitizers(), reason="gcc and its sanitizers are not here")
def test_sanitizers_find_nothing() -> None:
    assert run_sanitized(5.0, 0) == 0
