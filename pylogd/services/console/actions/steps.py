"""The steps of an action: a form, the plan (a dry run, and the command that does the same), and the outcome.

Strategy: an `Action` has the fields of its form, and makes a `Plan` from the entered values; all actions share the same
pages. The plan is made again when it is confirmed, so that it fits the state of the cluster at this time.

Rules: GET changes nothing. Only a confirmed POST runs a plan; it is logged before and after.

Each action is a line of the console's own log, and a JSON object in a file if there is one. The file is only appended
to, in a thread; an action whose line can't be written is not carried out.
"""

from __future__ import annotations

import json
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from twisted.logger import Logger

from pylogd.base.errors import PylogdError
from pylogd.base.threads import ThreadPool
from pylogd.services.console.answers import Answer, PageRequest, Refused
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.roles import Role
from pylogd.services.console.view import View
from pylogd.services.console.web import Route, route

log = Logger()


class ActionLog:
    """Appends a JSON line for each step of an action to a file, in a thread."""

    def __init__(self, reactor: Any, path: Path | None, now_ms: Callable[[], int]) -> None:
        """`path` is the file; None for no file. The log of the process has each action in any case."""
        self._path = path
        self._now_ms = now_ms
        self._pool = ThreadPool(reactor, 1, "console-action-log")

    def stop(self) -> None:
        """End the thread that writes, after the queued lines."""
        self._pool.stop()

    async def write(self, asked: PageRequest, action: str, command: str, outcome: str) -> None:
        """Log an action.

        outcome: `begun`, `done` or an error.

        Raises Refused if it can't be logged.
        """
        host = str(getattr(asked.request.getClientAddress(), "host", ""))
        cluster = asked.parts.get("cluster", "")
        log.info(
            "Action by {user} from {host} on {cluster}: {action}: {outcome} ({command})",
            user=asked.user or "(nobody)", host=host, cluster=cluster, action=action, outcome=outcome, command=command,
        )  # fmt: skip
        if self._path is None:
            return
        line = {
            "time_ms": self._now_ms(), "user": asked.user, "host": host, "cluster": cluster, "action": action,
            "outcome": outcome, "command": command,
        }  # fmt: skip
        try:
            await self._pool.defer(self._append, (json.dumps(line, ensure_ascii=False) + "\n").encode())
        except OSError as error:
            log.error("Can't write the log of actions {path}: {error}", path=self._path, error=error.strerror)
            raise Refused(503, "The action can't be logged, so it is refused; see the console's log.") from None

    def _append(self, line: bytes) -> None:
        assert self._path is not None
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        try:
            os.write(file, line)
        finally:
            os.close(file)


_CONFIRMED: Final = "yes"
_MOST_ROWS: Final = 1000


class Field(NamedTuple):
    """An input.

    kind: `text`, `number`, `area`, `choice` or `password`.
    hint: advice on the value.
    """

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    hint: str = ""
    required: bool = False
    choices: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of an action.

    line: the equivalent command.
    run: carries the action out, and returns a text for users.

    columns, rows: the result of the dry run, as a table.
    warning: the changes that can't be undone.
    logged: the line for the log, if it must not have values.
    """

    line: str
    run: Callable[[], Awaitable[str]]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    warning: str = ""
    logged: str = ""


class Action(ABC):
    """An action.

    path: the path below the cluster's path, with parts in braces.
    name: the name in the log.
    heading: the heading of its pages; it may have the parts of the path.
    after: the path, below the cluster's, of the page that the outcome links to; it may have the parts too.
    section: the section of the navigation.
    role: the lowest role that may carry the action out.
    secret: whether the form has secrets, which no other page may have: then no plan is shown before it is carried out.
    """

    path = ""
    name = ""
    heading = ""
    after = ""
    section = ""
    role: Role = Role.OPERATOR
    secret = False

    def title(self, asked: PageRequest) -> str:
        """Return the heading of its pages."""
        return self.heading.format(**asked.parts)

    def back(self, asked: PageRequest) -> str:
        """Return the path, below the cluster's, of the page that the outcome links to."""
        return self.after.format(**{name: quote(part, safe="") for name, part in asked.parts.items()})

    @abstractmethod
    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form's fields, filled with known values. Raises Refused."""

    @abstractmethod
    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the plan. Raises Refused for invalid input, PylogdError."""


@dataclass
class ActionPages:
    """The pages of all actions: form, plan and outcome.

    log: the log, which gets each action before and after it.
    """

    view: View
    log: ActionLog
    actions: Sequence[Action] = field(default_factory=list)

    def routes(self) -> list[Route]:
        """Return two routes for each action: GET shows its form; POST shows the plan, or carries it out."""
        found = []
        for action in self.actions:
            where = "/c/{cluster}" + action.path
            found.append(route("GET", where, partial(self._form, action), role=action.role))
            found.append(route("POST", where, partial(self._post, action), role=action.role))
        return found

    def _form(self, action: Action, asked: PageRequest, problem: str = "", status: int = 200) -> Answer:
        cluster = self.view.cluster(asked)
        given = asked.form or asked.options
        fields = [one._replace(value=given.get(one.name, one.value)) for one in action.fields(cluster, asked)]
        return self._page("form", action, asked, fields=fields, problem=problem, secret=action.secret)._replace(
            status=status
        )

    async def _post(self, action: Action, asked: PageRequest) -> Answer:
        cluster = self.view.cluster(asked)
        try:
            plan = await action.plan(cluster, asked)
        except (Refused, PylogdError) as error:
            return self._form(action, asked, str(error), 422)
        if asked.form.get("confirm") != _CONFIRMED and not action.secret:
            kept = {one.name: asked.form.get(one.name, "") for one in action.fields(cluster, asked)}
            return self._page("plan", action, asked, plan=plan, kept=kept, hidden=max(len(plan.rows) - _MOST_ROWS, 0))
        logged = plan.logged or plan.line
        await self.log.write(asked, action.name, logged, "begun")
        try:
            outcome = await plan.run()
        except PylogdError as error:
            await self.log.write(asked, action.name, logged, f"failed: {error}")
            return self._page("outcome", action, asked, plan=plan, outcome="", problem=str(error))._replace(status=502)
        await self.log.write(asked, action.name, logged, "done")
        cluster.sampler.sample_soon()
        return self._page("outcome", action, asked, plan=plan, outcome=outcome, problem="")

    def _page(self, step: str, action: Action, asked: PageRequest, **values: Any) -> Answer:
        return self.view.page(
            f"action_{step}.html", asked, self.view.cluster(asked), action.section, title=action.title(asked),
            back=action.back(asked), **values,
        )  # fmt: skip


def command(cluster: WatchedCluster, *words: object) -> str:
    """Return a line for the shell that runs `pylogd` with these words on a cluster."""
    return shlex.join(["pylogd", *map(str, words), "--bootstrap-server", cluster.options.bootstrap])


def number(form: Mapping[str, str], name: str, lowest: int, highest: int = 2**31 - 1) -> int:
    """Return an entered number. Raises Refused."""
    text = form.get(name, "").strip()
    digits = text.removeprefix("-")
    if not digits.isdecimal() or len(digits) > 18 or not lowest <= int(text) <= highest:
        raise Refused(422, f"Write a number from {lowest} to {highest} for {name.replace('_', ' ')}.")
    return int(text)


def name_field(kind: str) -> Field:
    """Return the input in which the user writes the name of the object to delete.

    kind: `topic` or `group`.
    """
    return Field("typed", f"Write the {kind}'s name", hint="to show that you mean this one", required=True)


def check_name(asked: PageRequest, kind: str, name: str) -> None:
    """Raise Refused unless the name was written into the input of `name_field`."""
    if asked.form.get("typed", "").strip() != name:
        raise Refused(422, f"This is not the {kind}'s name.")


def pairs(text: str, what: str) -> list[tuple[str, str]]:
    """Return the lines `name=value` of a text. Raises Refused."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise Refused(422, f"Write each of the {what} as name=value, one a line; {line[:60]!r} is not.")
        found.append((name.strip(), value.strip()))
    return found
