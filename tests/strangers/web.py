"""Crowds at the schema registry and at the console, beside users who must not notice.

A user who has logged in before asks for something again and again, in two ways: by the session of a browser or a
request that waits for a process, and by a password. Judged is whether all was answered, and in which time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from pylogd.credentials.passwords import add_user
from pylogd.local.broker import BrokerProcess
from tests.consoles import ConsoleProcess, Visitor
from tests.extreme.access import Access
from tests.rawclient import memory, reset_peak
from tests.registries import AT_ONCE, RegistryProcess
from tests.strangers.crowds import Attack, Crowd, connect, until_closed
from tests.strangers.probes import Probe, page, pairs

P99_MS: Final = 2000.0
MEMORY_MB: Final = 400.0
_USER, _PASSWORD = "ada", "secret-of-ada"
_EVE, _EVES = "eve", "secret-of-eve"
_BODY_BYTES: Final = 1_000_000
_SETTLE: Final = 2.0  # seconds after an attack that belong to neither
_ASSEMBLY: Final = 60.0  # the longest that a crowd takes to come
_WIDE: Final = 1000  # types of a schema that is slow to compare

Client = Callable[[Access, int], Awaitable[None]]


async def _request(access: Access, number: int, head: str, body: bytes = b"", *, wait: bool = False) -> None:
    """Send a request and read the answer. head: its first line, and headers. wait: do not finish the body."""
    reader, writer = await connect(access, number, encrypted=False)
    try:
        length = len(body) + wait
        writer.write(f"{head}\r\nHost: {access.address}\r\nContent-Length: {length}\r\n\r\n".encode() + body)
        await writer.drain()
        if wait:
            await until_closed((reader, writer))
        else:
            await asyncio.wait_for(reader.read(1 << 16), 30)
    finally:
        writer.transport.abort()


async def _silence(access: Access, number: int) -> None:
    """Connect, and say nothing."""
    await until_closed(await connect(access, number, encrypted=False))


async def _logins(access: Access, number: int) -> None:
    """Ask for the page to log in, as if for the first time."""
    await _request(access, number, "GET /login HTTP/1.1\r\nConnection: close")


def _guesses(path: str) -> Client:
    """Return what guesses the password of the user."""

    async def guess(access: Access, number: int) -> None:
        word = base64.b64encode(f"{_USER}:guess {number} {time.monotonic()}".encode()).decode()
        await _request(access, number, f"GET {path} HTTP/1.1\r\nAuthorization: Basic {word}")

    return guess


def _slow_bodies(path: str) -> Client:
    """Return what sends all of a body but its last byte, and waits."""

    async def send(access: Access, number: int) -> None:
        await _request(access, number, f"POST {path} HTTP/1.1", bytes(_BODY_BYTES), wait=True)

    return send


async def _slow_schemas(access: Access, number: int) -> None:
    """Register two schemas, as a user, that are slow to compare."""
    word = base64.b64encode(f"{_EVE}:{_EVES}".encode()).decode()
    for size in (1, 2):
        schema = json.dumps([{"type": "fixed", "name": f"n{at}", "size": size} for at in range(_WIDE)])
        await _request(
            access, number,
            f"POST /subjects/eve-{number}/versions HTTP/1.1\r\nAuthorization: Basic {word}\r\n"
            "Content-Type: application/json\r\nConnection: close",
            json.dumps({"schema": schema}).encode(),
        )  # fmt: skip


class WebAttack(NamedTuple):
    """What a crowd does to a service. pause: before a client comes again."""

    service: str
    name: str
    client: Client
    clients: int
    pause: float = 0.0


ATTACKS: Final = (
    WebAttack("console", "GET /login in a loop", _logins, 100),
    WebAttack("console", "silent connections", _silence, 4500, 1.0),
    WebAttack("console", "wrong passwords", _guesses("/"), 500),
    WebAttack("console", "bodies that do not end", _slow_bodies("/login"), 100, 1.0),
    WebAttack("registry", "silent connections", _silence, 4500, 1.0),
    WebAttack("registry", "wrong passwords", _guesses("/subjects"), 500),
    WebAttack("registry", "bodies that do not end", _slow_bodies("/subjects/s/versions"), 100, 1.0),
    WebAttack("registry", "slow schemas", _slow_schemas, 50),
)
HEAD: Final = (
    "attack", "connections made", "session or schema p50, ms", "p99", "password p50", "p99", "could not", "peak, MB",
)  # fmt: skip


class _Console:
    """A console with a user who has logged in."""

    def __init__(self, folder: Path, bootstrap: str, users: Path) -> None:
        config = folder / "console.toml"
        config.write_text(f'[clusters.main]\nbootstrap = "{bootstrap}"\n')
        self.process = ConsoleProcess(folder / "console.log", "--config", str(config), "--users", str(users))
        self.url, self.pid = self.process.url, self.process.pid
        self._visitor = Visitor(self.url)
        self._visitor.submit("/login", user=_USER, password=_PASSWORD)
        assert self._visitor.status == 200, self._visitor.page

    def stop(self) -> None:
        """End it."""
        self.process.stop()

    def probes(self) -> list[Probe]:
        """Return the probes: a browser, and a script with a password."""
        by_password = page(f"{self.url}/c/main/topics", _USER, _PASSWORD)
        by_password()
        return [Probe("browser", self._look), Probe("password", by_password)]

    def _look(self) -> None:
        self._visitor.get("/")
        assert self._visitor.status == 200, self._visitor.status
        assert not self._visitor.where.endswith("/login"), "logged out"


class _Registry:
    """A registry with a user."""

    def __init__(self, folder: Path, bootstrap: str, users: Path) -> None:
        self.process = RegistryProcess(bootstrap, folder / "registry.log", "--users", str(users))
        self.url, self.pid = self.process.url, self.process.process.pid

    def stop(self) -> None:
        """End it."""
        assert self.process.stop() == 0

    def probes(self) -> list[Probe]:
        """Return the probes: whether a schema is compatible, and what is there."""
        schema = json.dumps({"schema": json.dumps("string")}).encode()
        page(f"{self.url}/subjects/mine/versions", _USER, _PASSWORD, schema, "application/json")()
        compatible = f"{self.url}/compatibility/subjects/mine/versions/latest"
        return [
            Probe("schema", page(compatible, _USER, _PASSWORD, schema, "application/json")),
            Probe("password", page(f"{self.url}/subjects", _USER, _PASSWORD)),
        ]


def measure_all(only: str, seconds: float, rounds: int) -> list[list[str]]:
    """Make the attacks whose names have `only` in them. Return a row for each."""
    rows = []
    for attack in ATTACKS:
        if only in f"{attack.service}: {attack.name}":
            rows.append(_measure(attack, seconds, rounds))
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _measure(attack: WebAttack, seconds: float, rounds: int) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="pylogd-strangers-") as name:
        folder = Path(name)
        users = folder / "users"
        add_user(users, _USER, _PASSWORD)
        add_user(users, _EVE, _EVES)
        broker = BrokerProcess(folder / "data", folder / "log", AT_ONCE)
        try:
            service = (_Console if attack.service == "console" else _Registry)(folder, broker.address, users)
            try:
                return _beside(attack, service, seconds, rounds)
            finally:
                service.stop()
        finally:
            broker.kill()


def _beside(attack: WebAttack, service: _Console | _Registry, seconds: float, rounds: int) -> list[str]:
    crowd = Attack(attack.name, attack.client, attack.clients, secured=False, pause=attack.pause)
    target = Access(urlsplit(service.url).netloc)
    spans: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    attempts, peak = 0, 0.0
    crowds = [Crowd(crowd, target) for _ in range(rounds)]
    probes = service.probes()
    for made in crowds:
        spans[False].append(_span(seconds))
        reset_peak(service.pid)
        with made:
            _wait_until_all_came(made, attack)
            spans[True].append(_span(seconds))
            attempts += made.attempts
        peak = max(peak, memory(service.pid, "VmHWM"))
        time.sleep(_SETTLE)
    for one in probes:
        one.close()
    cells = [f"{attack.service}: {attack.name}", f"{attempts:,}"]
    for probe in probes:
        cells += pairs(*(
            [sample for sample in probe.samples if any(a <= sample.at < b for a, b in spans[attacked])]
            for attacked in (False, True)
        ))  # fmt: skip
    failures = [failure for one in probes for failure in one.failures]
    for failure in failures[:5]:
        print(f"strangers: {cells[0]}: {failure}", file=sys.stderr)
    return [*cells, str(len(failures)), f"{peak:.0f}"]


def _wait_until_all_came(crowd: Crowd, attack: WebAttack) -> None:
    """Wait until each client of a crowd has begun to connect, so that a bound on connections is met."""
    deadline = time.monotonic() + _ASSEMBLY
    while crowd.attempts < attack.clients and time.monotonic() < deadline:
        time.sleep(0.1)


def _span(seconds: float) -> tuple[float, float]:
    begun = time.monotonic()
    time.sleep(seconds)
    return begun, time.monotonic()


def report(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the part of the page about these attacks, as Markdown."""
    if not rows:
        return []
    text = (
        "At the schema registry and at the console, beside a user whose password was right before, who asks again and "
        "again: with the session of a browser, or whether a schema is compatible; and with the password."
    )
    return [
        text,
        "",
        "| " + " | ".join(HEAD) + " |",
        "| --- |" + " --: |" * (len(HEAD) - 1),
        *("| " + " | ".join(cells) + " |" for cells in rows),
        "",
    ]


def judge(cells: Sequence[str]) -> list[str]:
    """Return what is out of bounds in a row."""
    faults = []
    for at in (3, 5):
        if float(cells[at].split("/")[1]) > P99_MS:
            faults.append(f"{HEAD[at]} is {cells[at]} ms; it should be under {P99_MS:.0f}")
    if int(cells[6]):
        faults.append(f"{cells[6]} requests of well-behaved users failed")
    if float(cells[7]) > MEMORY_MB:
        faults.append(f"the service took {cells[7]} MB; it should take less than {MEMORY_MB:.0f}")
    return [f"{cells[0]}: {fault}" for fault in faults]
