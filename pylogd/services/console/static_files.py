"""The packaged scripts and styles of the pages; none comes from elsewhere. `static/README.md` names their authors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Final, NamedTuple

_KINDS: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


class StaticFile(NamedTuple):
    """A file.

    url: its path with a hash of its content, so that browsers may keep it.
    """

    body: bytes
    kind: str
    url: str


def load() -> Mapping[str, StaticFile]:
    """Read the packaged scripts and styles from the disk. Return their contents by file name."""
    found = {}
    for each in sorted(files("pylogd.services.console").joinpath("static").iterdir(), key=lambda one: one.name):
        kind = next((kind for suffix, kind in _KINDS.items() if each.name.endswith(suffix)), None)
        if kind is not None:
            body = each.read_bytes()
            mark = hashlib.sha256(body).hexdigest()[:12]
            found[each.name] = StaticFile(body, kind, f"/static/{each.name}?v={mark}")
    return found
