"""Values that the protocol gives a meaning of their own. Imports nothing, so that messages stay cheap to load."""

from __future__ import annotations

#: the id that means "no topic id"
ZERO_UUID = bytes(16)
