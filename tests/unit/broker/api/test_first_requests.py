"""What clients send first finds its codecs compiled, each for the one direction that a broker needs."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import pylogd.broker.api
from pylogd.broker.api import first_requests
from pylogd.wire import schema
from pylogd.wire.messages import ApiKey

before = schema._codec.cache_info().misses
first_requests.build_opening_codecs()
opening = schema._codec.cache_info().misses - before
first_requests.build_following_codecs()
for key in (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID):
    last = first_requests.served_versions()[key][1]
    request, response = schema.request_codec(key, last), schema.response_codec(key, last)
    assert request._parse and not request._build, key
    assert response._build and not response._parse, key
print(opening, schema._codec.cache_info().misses - before)
"""


def test_codecs_of_first_requests() -> None:
    """In a process of its own: other tests build codecs too."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr
    opening, everything = map(int, done.stdout.split())
    assert opening == 2 * 7, "5 versions of ApiVersions and 2 of Metadata hold up the start"
    assert everything == opening + 2 * 10
