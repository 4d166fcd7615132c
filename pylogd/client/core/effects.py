"""What a face has to do for a network: open, write to and close transports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pylogd.client.core.network import Link


@dataclass(slots=True)
class Open:
    """Effect: connect to `link.host`:`link.port`, then report `opened` or `lost`."""

    link: Link


@dataclass(slots=True)
class Write:
    """Effect: write `parts` in order. Each is bytes or another buffer that does not change."""

    link: Link
    parts: list[Any]


@dataclass(slots=True)
class Close:
    """Effect: close the transport of `link`, if there is one. Report nothing more of it."""

    link: Link


Effect = Open | Write | Close
