"""Messages of a topic: searched, followed live, and exported as JSON lines."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pylogd.services.console.answers import Answer, PageRequest
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.pages.topics import find_topic
from pylogd.services.console.reading import MOST_EXPORTED, Messages, Wanted
from pylogd.services.console.tailing import Tails
from pylogd.services.console.view import View
from pylogd.services.console.web import Route, route

_FIELDS: Final = ("partition", "from", "count", "text", "field", "header")


@dataclass(eq=False, slots=True)
class MessagePages:
    """The pages of a topic's messages."""

    _view: View
    _messages: Messages
    _tails: Tails

    def routes(self) -> list[Route]:
        """Return the routes of these pages: method, path, handler and the lowest role."""
        where = "/c/{cluster}/topics/{topic}/messages"
        return [
            route("GET", where, self.messages),
            route("GET", where + ".jsonl", self.export),
            route("GET", where + "/tail", self.tail),
            route("GET", where + "/events", self.events),
        ]

    async def messages(self, asked: PageRequest) -> Answer:
        """Return a page with the messages that pass the filters of the request, and the form for another search."""
        cluster = self._view.cluster(asked)
        topic = find_topic(cluster, asked.parts["topic"])
        wanted = Wanted.of(topic.name, asked.options)
        found = await self._messages.read(cluster.cluster, cluster.decoder, wanted, len(topic))
        return self._view.page(
            "messages.html", asked, cluster, "topics", topic=topic, found=found, wanted=wanted,
            given=_given(asked.options), line=command(cluster, wanted), tailing=False,
        )  # fmt: skip

    async def export(self, asked: PageRequest) -> Answer:
        """Return the messages that pass the filters as a file with a JSON object a line."""
        cluster = self._view.cluster(asked)
        topic = find_topic(cluster, asked.parts["topic"])
        wanted = Wanted.of(topic.name, asked.options, MOST_EXPORTED)
        found = await self._messages.read(cluster.cluster, cluster.decoder, wanted, len(topic))
        lines = (json.dumps(one.document(), ensure_ascii=False, default=str) + "\n" for one in found.messages)
        name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in topic.name)
        return Answer(
            "".join(lines).encode(), "application/x-ndjson; charset=utf-8",
            headers=[("Content-Disposition", f'attachment; filename="{name}.jsonl"')],
        )  # fmt: skip

    def tail(self, asked: PageRequest) -> Answer:
        """Return a page on which the browser follows the topic, by `events`."""
        cluster = self._view.cluster(asked)
        topic = find_topic(cluster, asked.parts["topic"])
        wanted = Wanted.of(topic.name, asked.options)._replace(start="end")
        return self._view.page(
            "messages.html", asked, cluster, "topics", topic=topic, found=None, wanted=wanted,
            given=_given(asked.options), line=command(cluster, wanted), tailing=True,
        )  # fmt: skip

    def events(self, asked: PageRequest) -> None:
        """Keep the connection, and send an event with each new message."""
        cluster = self._view.cluster(asked)
        topic = find_topic(cluster, asked.parts["topic"])
        wanted = Wanted.of(topic.name, asked.options)

        def render(message: Any) -> bytes:
            return self._view.page(
                "message.html", asked, cluster, "topics", topic=topic, one=message, tailing=True
            ).body  # fmt: skip

        self._tails.open(asked.request, cluster, wanted, self._messages.places(wanted, len(topic)), render)


def _given(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a search in their original form, for links and forms."""
    return {name: options[name] for name in _FIELDS if options.get(name)}


def command(cluster: WatchedCluster, wanted: Wanted) -> str:
    """Return the command that shows the same messages, without filters, which are left to other programs."""
    words = ["pylogd", "consume", wanted.topic, "--bootstrap-server", cluster.options.bootstrap]
    if wanted.partition is not None:
        words += ["--partition", str(wanted.partition)]
    start = {"newest": f"-{wanted.most}", "oldest": "beginning"}.get(wanted.start, wanted.start)
    words += [f"--from={start}", "--format", "json"]
    words += [] if wanted.start == "end" else ["--count", str(wanted.most), "--until-end"]
    if wanted.text:
        return shlex.join(words) + " | grep -iF -- " + shlex.quote(wanted.text)
    return shlex.join(words)
