"""Logging in and out, and the packaged files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pylogd.services.console.answers import Answer, PageRequest, Refused, redirect
from pylogd.services.console.login import Login
from pylogd.services.console.roles import Identity
from pylogd.services.console.view import View
from pylogd.services.console.web import Route, route


@dataclass(eq=False, slots=True)
class Access:
    """The pages that need no login.

    log_in: opens a session for a user.
    log_out: ends the session.
    """

    _view: View
    _login: Login
    _log_in: Callable[[PageRequest, Identity], Answer]
    _log_out: Callable[[PageRequest], Answer]

    def routes(self) -> list[Route]:
        """Return the routes of these pages: method, path, handler and the lowest role."""
        return [
            route("GET", "/static/{name}", self.static, public=True),
            route("GET", "/login", self.form, public=True),
            route("POST", "/login", self.check, public=True),
            route("POST", "/logout", self._log_out, public=True),
            route("GET", "/health", lambda _: Answer(b"ok\n", "text/plain; charset=utf-8"), public=True),
        ]

    def static(self, asked: PageRequest) -> Answer:
        """Return a packaged file. Its path has a hash of its content, so browsers may keep it."""
        found = self._view.static.get(asked.parts["name"])
        if found is None:
            raise Refused(404, "There is no such file.")
        return Answer(found.body, found.kind, headers=[("Cache-Control", "public, max-age=31536000, immutable")])

    def form(self, asked: PageRequest) -> Answer:
        """Return the form for a password, and the links to other ways to log in."""
        if asked.user or not self._login.needed:
            return redirect("/")
        return self._view.page("login.html", asked, login=self._login, problem="")

    async def check(self, asked: PageRequest) -> Answer:
        """Return an answer with a session of the user whose password was sent, or the form with an error."""
        host = str(getattr(asked.request.getClientAddress(), "host", ""))
        try:
            user = await self._login.check(asked.form.get("user", ""), asked.form.get("password", ""), host)
        except Refused as error:
            page = self._view.page("login.html", asked, login=self._login, problem=str(error))
            return page._replace(status=error.status)
        return self._log_in(asked, user)
