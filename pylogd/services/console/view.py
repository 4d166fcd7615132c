"""The code that all pages share: the layout's values, the clusters, and the packaged files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, NamedTuple

from pylogd.services.console.answers import Answer, PageRequest, Refused
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.rendering import Renderer
from pylogd.services.console.roles import Role

_KINDS: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


class StaticFile(NamedTuple):
    """A file.

    url: its path with a hash of its content, so that browsers may keep it.
    """

    body: bytes
    kind: str
    url: str


def load_static_files() -> Mapping[str, StaticFile]:
    """Read the packaged scripts and styles from the disk. Return their contents by file name."""
    found = {}
    for each in sorted(files("pylogd.services.console").joinpath("static").iterdir(), key=lambda one: one.name):
        kind = next((kind for suffix, kind in _KINDS.items() if each.name.endswith(suffix)), None)
        if kind is not None:
            body = each.read_bytes()
            mark = hashlib.sha256(body).hexdigest()[:12]
            found[each.name] = StaticFile(body, kind, f"/static/{each.name}?v={mark}")
    return found


SECTIONS: Final = (
    ("overview", "Overview", ""), ("topics", "Topics", "/topics"), ("groups", "Groups", "/groups"),
    ("brokers", "Brokers", "/brokers"), ("admin", "Administration", "/admin"),
)  # fmt: skip
_OLD_SECONDS: Final = 120


class View:
    """Renders pages of all clusters in one layout."""

    def __init__(
        self,
        clusters: Mapping[str, WatchedCluster],
        static: Mapping[str, StaticFile],
        *,
        allow_writes: bool = False,
        login_needed: bool = False,
    ) -> None:
        self.clusters = clusters
        self.static = static
        self.allow_writes = allow_writes
        self._login_needed = login_needed
        self._renderer = Renderer()

    def cluster(self, asked: PageRequest) -> WatchedCluster:
        """Return the cluster that a request is about. Raises Refused."""
        found = self.clusters.get(asked.parts.get("cluster", ""))
        if found is None:
            raise Refused(404, "There is no such cluster.")
        return found

    def page(
        self, template: str, asked: PageRequest, cluster: WatchedCluster | None = None, section: str = "", **values: Any
    ) -> Answer:
        """Return a page.

        section: its part of the navigation.
        """
        sample = None if cluster is None else cluster.sampler.last
        layout = {
            "asked": asked, "user": asked.user, "token": asked.token, "cluster": cluster, "sample": sample,
            "section": section, "role": asked.role.name.lower(),
            "allow_writes": self.allow_writes and asked.role >= Role.OPERATOR,
            "administers": self.allow_writes and asked.role >= Role.ADMIN,
        }  # fmt: skip
        return Answer(self._renderer.render(template, {**self._common(), **layout, **values}))

    def error(self, status: int, text: str) -> Answer:
        """Return a page that says why a request can't be answered."""
        layout = {"user": "", "token": "", "cluster": None, "sample": None, "section": "", "allow_writes": False,
                  "administers": False, "role": ""}  # fmt: skip
        body = self._renderer.render("error.html", {**self._common(), **layout, "status": status, "text": text})
        return Answer(body, status=status)

    def _common(self) -> dict[str, Any]:
        return {
            "clusters": self.clusters, "static": self.static, "sections": SECTIONS,
            "login_needed": self._login_needed,
        }  # fmt: skip
