"""Pages, and who may send what, with requests in memory."""

from __future__ import annotations

import re
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred

from pylogd.base.limits.shares import FairWork
from pylogd.services.console.login import Login
from pylogd.services.console.pages import overview
from pylogd.services.console.roles import EVERYTHING, Identity, Role, Roles
from pylogd.services.console.sample import TopicState
from pylogd.services.console.series import TopicSeries
from tests.unit.services.console.memory import MemoryConsole, parse

PAGES = (
    "", "/topics", "/topics?sort=size&reverse=1&page=2", "/topics?q=stream-0001", "/topics/{topic}", "/groups",
    "/groups?sort=state", "/groups/reader-00003", "/groups/reader-00003/members", "/brokers", "/brokers/1",
    "/brokers/1?all=1", "/admin", "/mirrors", "/audit", "/tables",
)  # fmt: skip


@pytest.fixture(scope="module")
def console() -> MemoryConsole:
    made = MemoryConsole()
    made.sample()
    made.sample()
    return made


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_whole_and_has_the_headers(console: MemoryConsole, page: str) -> None:
    topic = next(iter(console.calls.record.topics))
    found = console.ask("/c/cluster" + page.format(topic=topic))
    assert found.status == 200 and found.body.rstrip().endswith("</html>")
    assert found.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert found.headers["x-frame-options"] == "DENY" and found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["cache-control"] == "no-store"
    assert "HttpOnly; SameSite=Lax" in found.headers["set-cookie"]
    inline = re.findall(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|javascript:", found.body)
    assert not inline, "the policy forbids scripts and styles inside of pages"


def test_pages_ask_the_cluster_for_nothing_that_samples_have(console: MemoryConsole) -> None:
    topic = next(iter(console.calls.record.topics))
    console.calls.seen.clear()
    for page in ("", "/topics", f"/topics/{topic}", "/groups", "/groups/reader-00003", "/brokers"):
        assert console.ask("/c/cluster" + page).status == 200
    assert not console.calls.seen


def test_before_the_first_sample_pages_say_so() -> None:
    console = MemoryConsole()
    assert "The first sample is being taken" in console.ask("/c/cluster").body
    assert console.ask("/c/cluster/topics").status == 200


def test_one_cluster_is_the_start_page_and_several_are_listed() -> None:
    console = MemoryConsole()
    assert console.ask("/").headers["location"] == "/c/cluster"
    console.service.clusters["other"] = console.service.clusters["cluster"]
    assert 'href="/c/other"' in console.ask("/").body


def test_what_comes_from_a_cluster_is_text() -> None:
    console = MemoryConsole()
    console.sample()
    hostile = "<script>alert(1)</script>&\"'"
    topic = TopicState(hostile, bytes(16), False, TopicSeries())
    topic.add(1, (1,), (1,))
    console.sampler.last.topics[hostile] = topic
    for path in ("/c/cluster/topics", "/c/cluster/topics?q=%3Cscript"):
        body = console.ask(path).body
        assert "<script>alert" not in body and "&lt;script&gt;alert" in body


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nothing", 404), ("/c/none", 404), ("/c/cluster/topics/none", 404), ("/c/cluster/groups/none", 404),
     ("/c/cluster/brokers/9", 404), ("/c/cluster/brokers/x", 404), ("/static/none.js", 404),
     ("/c/cluster/topics?page=99999999999", 200), ("/c/cluster/topics?sort=nothing", 200),
     ("/c/cluster/topics/../../../etc/passwd", 404), ("/static/%2e%2e%2fsetup.cfg", 404)],
)  # fmt: skip
def test_wrong_addresses(console: MemoryConsole, path: str, status: int) -> None:
    assert console.ask(path).status == status


def test_a_read_only_console_changes_nothing(console: MemoryConsole) -> None:
    first = console.ask("/c/cluster/topics")
    assert "Create a topic" not in first.body
    refused = console.ask("/c/cluster/create-topic")
    assert refused.status == 403 and "read-only" in refused.body
    form = {"csrf": "x", "topic": "t", "confirm": "yes"}
    assert console.ask("/c/cluster/create-topic", form, cookie=first.cookie).status == 403


def test_a_form_needs_the_token_of_its_session() -> None:
    console = MemoryConsole(allow_writes=True)
    console.sample()
    page = console.ask("/c/cluster/cancel-moves")
    other = console.ask("/c/cluster/cancel-moves")
    path = "/c/cluster/remove-user"
    for cookie, token in ((page.cookie, ""), (page.cookie, other.token), ("", page.token), ("pylogd=x", page.token)):
        assert console.ask(path, {"csrf": token}, cookie=cookie).status == 403
    assert console.ask(path, {"csrf": page.token}, cookie=page.cookie, sec_fetch_site="cross-site").status == 403
    fine = console.ask(path, {"csrf": page.token}, cookie=page.cookie, sec_fetch_site="same-origin")
    assert fine.status == 422 and "no such user" in fine.body


def test_get_of_an_action_only_shows_a_form() -> None:
    console = MemoryConsole(allow_writes=True)
    console.sample()
    topic = next(iter(console.calls.record.topics))
    console.calls.seen.clear()
    for path in ("create-topic", f"topics/{topic}/delete", "groups/reader-00003/reset", "cancel-moves", "set-user"):
        assert "<form" in console.ask(f"/c/cluster/{path}?confirm=yes").body
    assert not console.calls.seen


def test_another_sites_name_is_refused_without_a_login() -> None:
    console = MemoryConsole(hosts=frozenset({"localhost", "127.0.0.1", "::1"}))
    assert console.ask("/health").status == 200
    for host in ("localhost:8088", "127.0.0.1", "[::1]:8088", "LOCALHOST"):
        assert console.ask("/health", host=host).status == 200
    for host in ("attacker.example", "attacker.example:8088", "localhost.attacker.example", ""):
        assert console.ask("/health", host=host).status == 421


class Users:
    """A file of users in which ada has a password."""

    slow = True

    def read(self) -> None:
        """There is nothing to read."""

    def is_right(self, user: str, password: str) -> bool:
        return (user, password) == ("ada", "secret")

    def remembers(self, user: str, password: str) -> bool:
        return False


class ClockedLogin(Login):
    """Checks passwords on the caller's thread."""

    async def check(self, name: str, password: str, host: str) -> Identity:
        self._work = FairWork(Direct().defer, 1, 1)
        return await super().check(name, password, host)


class Direct:
    """A pool without threads."""

    def defer(self, function: Any, *arguments: Any) -> Deferred[Any]:
        return maybeDeferred(function, *arguments)

    def stop(self) -> None:
        """Nothing runs."""


def with_login(roles: Roles = EVERYTHING, *, allow_writes: bool = False) -> MemoryConsole:
    users: Any = Users()
    clock: Any = None
    login = ClockedLogin(clock, users, roles=roles)
    console = MemoryConsole(login=login, allow_writes=allow_writes)
    login._reactor = console.clock
    console.sample()
    return console


def test_without_a_session_pages_lead_to_the_login_and_back() -> None:
    console = with_login()
    first = console.ask("/c/cluster/groups?sort=lag")
    assert (first.status, first.headers["location"]) == (303, "/login")
    page = console.ask("/login", cookie=first.cookie)
    form = {"csrf": page.token, "user": "ada", "password": "secret"}
    done = console.ask("/login", form, cookie=first.cookie)
    assert (done.status, done.headers["location"]) == (303, "/c/cluster/groups?sort=lag")
    assert done.cookie not in ("", first.cookie), "a login opens a new session"
    assert console.ask("/c/cluster/groups", cookie=done.cookie).status == 200
    assert console.ask("/c/cluster/groups", cookie=first.cookie).status == 303
    out = console.ask("/logout", {"csrf": console.ask("/c/cluster", cookie=done.cookie).token}, cookie=done.cookie)
    assert out.status == 303 and console.ask("/c/cluster", cookie=done.cookie).status == 303


def test_requests_without_a_login_end_nobodys_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,200 requests for /login logged everybody out."""
    monkeypatch.setattr("pylogd.services.console.sessions._MOST", 3)
    console = with_login()
    page = console.ask("/login")
    done = console.ask("/login", {"csrf": page.token, "user": "ada", "password": "secret"}, cookie=page.cookie)
    for path in ("/login", "/health", "/c/cluster", "/static/none.js") * 2:
        console.ask(path)
    assert console.ask("/c/cluster", cookie=done.cookie).status == 200
    assert "set-cookie" not in console.ask("/c/cluster", cookie=done.cookie).headers


def test_a_session_ends_when_it_was_idle() -> None:
    console = with_login()
    page = console.ask("/login")
    done = console.ask("/login", {"csrf": page.token, "user": "ada", "password": "secret"}, cookie=page.cookie)
    console.clock.advance(8 * 3600 - 1)
    assert console.ask("/c/cluster", cookie=done.cookie).status == 200
    console.clock.advance(8 * 3600 + 1)
    assert console.ask("/c/cluster", cookie=done.cookie).status == 303


def test_a_wrong_password_is_answered_late() -> None:
    console = with_login()
    page = console.ask("/login")
    transport = console.send(
        b"POST /login HTTP/1.1\r\nhost: x\r\ncookie: %b\r\ncontent-length: %d\r\n"
        b"content-type: application/x-www-form-urlencoded\r\n\r\n%b"
        % (page.cookie.encode(), len(body := f"csrf={page.token}&user=ada&password=x".encode()), body)
    )
    assert not transport.value()
    console.clock.advance(1)
    refused = parse(transport.value())
    assert refused.status == 401 and "password is wrong" in refused.body


def test_scripts_may_send_their_credentials() -> None:
    console = with_login()
    assert console.ask("/c/cluster", authorization="Basic YWRhOnNlY3JldA==").status == 200
    assert console.ask("/c/cluster", authorization="Bearer x").status == 401
    assert console.ask("/c/cluster", authorization="Basic !").status == 401
    assert console.ask("/c/cluster/events", accept="text/event-stream").status == 401


@pytest.mark.parametrize(
    ("role", "statuses"),
    [(Role.NONE, (403, 403, 403)), (Role.VIEWER, (200, 403, 403)), (Role.OPERATOR, (200, 200, 403)),
     (Role.ADMIN, (200, 200, 200))],
)  # fmt: skip
def test_roles(role: Role, statuses: tuple[int, int, int]) -> None:
    console = with_login(Roles({role: ["user:ada"]} if role else {}), allow_writes=True)
    ada = "Basic YWRhOnNlY3JldA=="
    topic = next(iter(console.calls.record.topics))
    paths = (f"/c/cluster/topics/{topic}", "/c/cluster/create-topic", f"/c/cluster/topics/{topic}/delete")
    assert tuple(console.ask(path, authorization=ada).status for path in paths) == statuses
    posted = [console.ask(path, {"confirm": "yes", "typed": "x"}, authorization=ada).status for path in paths[1:]]
    assert [status == 403 for status in posted] == [role < Role.OPERATOR, role < Role.ADMIN]
    page = console.ask(paths[0], authorization=ada).body
    assert ("/produce" in page, "/delete" in page) == (role >= Role.OPERATOR, role is Role.ADMIN)


def test_a_session_has_the_role_of_its_login() -> None:
    console = with_login(Roles({Role.OPERATOR: ["user:ada"]}, Role.VIEWER), allow_writes=True)
    page = console.ask("/login")
    done = console.ask("/login", {"csrf": page.token, "user": "ada", "password": "secret"}, cookie=page.cookie)
    body = console.ask("/c/cluster/topics", cookie=done.cookie).body
    assert "(operator)" in body and "Create a topic" in body
    refused = console.ask("/c/cluster/set-quota", cookie=done.cookie)
    assert refused.status == 403 and "needs the role admin" in refused.body


def test_who_has_which_role() -> None:
    roles = Roles(
        {Role.VIEWER: ["user:eve", "user:ada"], Role.OPERATOR: ["claim:groups=platform"], Role.ADMIN: ["user:ada"]}
    )
    assert roles.of(Identity("ada", "user")) is Role.ADMIN, "the highest one"
    assert roles.of(Identity("ada", "oidc")) is Role.NONE, "who logged in elsewhere is somebody else"
    assert roles.of(Identity("x", "oidc", frozenset({"groups=platform", "a=b"}))) is Role.OPERATOR
    for name in ("ada", "user:", "claim:groups", "password:ada"):
        with pytest.raises(ValueError, match="not a member of a role"):
            Roles({Role.ADMIN: [name]})


def test_each_sample_is_an_event() -> None:
    console = MemoryConsole()
    transport = console.send(b"GET /c/cluster/events HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"text/event-stream" in transport.value()
    for number in (1, 2):
        transport.clear()
        console.sample()
        assert b"event: sample\ndata: %d\n\n" % number in transport.value()
    transport.clear()
    console.service._events.stop()
    assert transport.value().endswith(b"0\r\n\r\n"), "the stream has ended"
    console.sample()


def test_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "_MOST", 2)
    console = MemoryConsole()
    for _ in range(2):
        console.send(b"GET /c/cluster/events HTTP/1.1\r\nhost: x\r\n\r\n")
    assert console.ask("/c/cluster/events").status == 503


def test_packaged_files_may_be_kept_by_browsers(console: MemoryConsole) -> None:
    body = console.ask("/c/cluster").body
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', body):
        found = console.ask(path)
        assert found.status == 200 and "immutable" in found.headers["cache-control"]


def test_a_list_shows_what_passes_the_filter(console: MemoryConsole) -> None:
    body = console.ask("/c/cluster/groups?q=reader-0000").body
    assert "10 of 12" in body and "reader-00009" in body and "reader-00011" not in body


def test_every_topic_is_on_one_page_of_the_list() -> None:
    console = MemoryConsole(topics=120, partitions=200, groups=0)
    console.sample()
    seen = []
    for page in (1, 2, 3):
        seen += re.findall(r'id="t-\d+" href="[^"]+">([^<]+)<', console.ask(f"/c/cluster/topics?page={page}").body)
    assert sorted(seen) == sorted(console.calls.record.topics) and len(set(seen)) == 120
