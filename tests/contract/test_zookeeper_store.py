"""The store on ZooKeeper, beyond the common suite: expired sessions, stopped servers, several brokers, security."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

from pylogd.config import ConfigError
from pylogd.config.zookeeper import ZooKeeperSecurity
from pylogd.local.zookeeper import LocalZooKeeper, find_java
from pylogd.store import kazoo_session
from pylogd.store import zookeeper as zookeeper_module
from pylogd.store.errors import (
    AccessDenied,
    ConnectionLost,
    InvalidNode,
    NodeError,
    StoreClosed,
    StoreError,
    StoreFailure,
)
from pylogd.store.interfaces import Create, EventType, SessionState, SetData, WatchEvent
from pylogd.store.zookeeper import ZooKeeperStore
from tests.fakes.metadata import ThreadsOnly
from tests.zookeeper import PATIENCE_SECONDS, ZooKeeper, ZooKeeperBench

CONNECTED, SUSPENDED, EXPIRED = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.EXPIRED


@pytest.fixture
def make_bench() -> Iterator[Callable[..., ZooKeeperBench]]:
    made: list[ZooKeeperBench] = []

    def make(connect: str, **arguments: Any) -> ZooKeeperBench:
        made.append(ZooKeeperBench(connect, **arguments))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(zookeeper: ZooKeeper, make_bench: Callable[..., ZooKeeperBench]) -> ZooKeeperBench:
    return make_bench(zookeeper.connect)


def started(bench: ZooKeeperBench, **arguments: Any) -> ZooKeeperStore:
    store = bench.store(**arguments)
    bench.wait(store.start())
    return store


def states_of(store: ZooKeeperStore) -> list[SessionState]:
    states: list[SessionState] = []
    store.on_session(states.append)
    return states


def kill_session(store: ZooKeeperStore) -> None:
    """End the store's session without its knowledge, as the servers do at the session timeout."""
    client = store._session._client
    assert client is not None
    session, password = client.client_id
    # The session is taken over and closed by bytes sent together, as the store could take it back in between.
    connect = struct.pack(">iqiqi16s?", 0, 0, 10_000, session, 16, password, False)
    close = struct.pack(">ii", 1, -11)
    host, port = store._hosts.split(",")[0].split(":")
    with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as connection:
        connection.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in (connect, close)))
        while connection.recv(4096):
            pass


# -- several brokers


def test_brokers_see_each_others_writes_and_are_told(bench: ZooKeeperBench) -> None:
    one, two = started(bench), started(bench)
    events: list[WatchEvent] = []
    bench.wait(one.create("/a", b"first"))
    assert bench.wait(two.get("/a", events.append)).data == b"first"
    assert bench.wait(two.children("/", events.append)) == ["a"]
    bench.wait(one.set("/a", b"second"))
    bench.wait(one.create("/b"))
    bench.until(lambda: len(events) == 2)
    assert set(events) == {WatchEvent(EventType.CHANGED, "/a"), WatchEvent(EventType.CHILDREN, "/")}
    assert bench.wait(two.get("/a")).data == b"second"


def test_an_ephemeral_node_goes_with_the_broker_that_made_it(bench: ZooKeeperBench) -> None:
    one, two = started(bench), started(bench)
    events: list[WatchEvent] = []
    bench.wait(one.create("/alive", ephemeral=True))
    found = bench.wait(two.exists("/alive", events.append))
    assert found.owner == one.session_id != two.session_id
    bench.wait(one.close())
    bench.until(lambda: events)
    assert events == [WatchEvent(EventType.DELETED, "/alive")]


# -- the end of a session


def test_a_session_that_expired_is_followed_by_another(bench: ZooKeeperBench) -> None:
    store = started(bench)
    states, events = states_of(store), list[WatchEvent]()
    before = store.session_id
    bench.wait(store.create("/alive", ephemeral=True))
    bench.wait(store.create("/lasting"))
    bench.wait(store.get("/lasting", events.append))
    kill_session(store)
    bench.until(lambda: CONNECTED in states, states)
    assert states == [SUSPENDED, EXPIRED, CONNECTED]
    assert store.session_id not in (0, before)
    assert bench.wait(store.exists("/alive")) is None
    assert bench.wait(store.exists("/lasting")) is not None
    # The watch was dropped with its session.
    bench.wait(store.set("/lasting", b""))
    bench.wait(store.exists("/"))
    assert events == []


def test_calls_around_the_end_of_a_session_are_all_answered(bench: ZooKeeperBench) -> None:
    store = started(bench)
    states = states_of(store)
    bench.wait(store.create("/a"))
    answers: list[int | StoreError] = []
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        store.set("/a", b"").addCallbacks(answers.append, lambda failure: answers.append(failure.value))

    for _ in range(50):
        ask()
    kill_session(store)
    while CONNECTED not in states:
        ask()
        bench.reactor.iterate(0.001)
    bench.until(lambda: len(answers) == asked)
    assert all(isinstance(answer, int | StoreError) for answer in answers)
    versions = [answer for answer in answers if isinstance(answer, int)]
    assert versions == sorted(versions)
    assert bench.wait(store.get("/a")).stat.version >= versions[-1]


# -- servers that stop and restart


def test_a_session_outlives_a_restart_of_the_server(
    own_zookeeper: LocalZooKeeper, make_bench: Callable[..., ZooKeeperBench]
) -> None:
    bench = make_bench(own_zookeeper.hosts, session_timeout_ms=240_000)
    store = started(bench)
    states = states_of(store)
    session = store.session_id
    bench.wait(store.create("/lasting", b"kept"))
    bench.wait(store.create("/alive", ephemeral=True))
    found: list[bytes] = []

    def look(state: SessionState) -> None:
        if state is CONNECTED:
            store.get("/lasting").addCallback(lambda node: found.append(node.data))

    store.on_session(look)
    own_zookeeper.restart()
    bench.until(lambda: found)
    assert states == [SUSPENDED, CONNECTED]
    assert found == [b"kept"]
    assert store.session_id == session
    assert bench.wait(store.exists("/alive")).owner == session


def test_a_store_whose_reactor_stands_still_loses_its_session(
    zookeeper: ZooKeeper, make_bench: Callable[..., ZooKeeperBench]
) -> None:
    """kazoo's thread goes on meanwhile, as beside a reactor in a write to a disk that hangs."""
    hung, lively = make_bench(zookeeper.connect, session_timeout_ms=2000), make_bench(zookeeper.connect)
    store, other = started(hung), started(lively)
    states, events = states_of(store), list[WatchEvent]()
    hung.wait(store.create("/alive", ephemeral=True))
    lively.wait(other.exists("/alive", events.append))
    lively.until(lambda: events, "that the session of the other has ended")
    assert events == [WatchEvent(EventType.DELETED, "/alive")]
    assert store._session.connected  # nobody has told it yet
    hung.until(lambda: CONNECTED in states, states)
    assert states[-2:] == [EXPIRED, CONNECTED]
    hung.wait(store.create("/alive", ephemeral=True))


def test_requests_during_an_outage_are_done_after_it(
    own_zookeeper: LocalZooKeeper, make_bench: Callable[..., ZooKeeperBench]
) -> None:
    bench = make_bench(own_zookeeper.hosts, session_timeout_ms=240_000)
    store = started(bench)
    states = states_of(store)
    own_zookeeper.stop()
    bench.until(lambda: SUSPENDED in states)
    pending: list[Deferred[Any]] = [store.create("/a"), store.set("/a", b"1"), store.set("/a", b"2", 1)]
    own_zookeeper.start()
    assert [bench.wait(deferred) for deferred in pending] == ["/a", 1, 2]


def test_no_request_waits_longer_than_a_session_lasts(
    own_zookeeper: LocalZooKeeper, make_bench: Callable[..., ZooKeeperBench]
) -> None:
    bench = make_bench(own_zookeeper.hosts, session_timeout_ms=3000)
    store = started(bench)
    states = states_of(store)
    bench.wait(store.create("/a"))
    own_zookeeper.stop()
    for _ in range(2):  # the first fails at the session timeout, the second at once
        with pytest.raises(ConnectionLost):
            bench.wait(store.set("/a", b""))
    own_zookeeper.start()
    bench.until(lambda: CONNECTED in states)
    assert bench.wait(store.exists("/a")) is not None


def test_a_server_that_does_not_answer_is_noticed_and_does_not_hold_up_a_close(
    own_zookeeper: LocalZooKeeper, make_bench: Callable[..., ZooKeeperBench]
) -> None:
    bench = make_bench(own_zookeeper.hosts, session_timeout_ms=1000)
    store = started(bench)
    states = states_of(store)
    own_zookeeper.pause()
    pending = store.create("/a")
    with pytest.raises(ConnectionLost):
        bench.wait(pending)
    bench.until(lambda: SUSPENDED in states)
    bench.wait(store.close())
    assert states[-1] is SessionState.CLOSED
    own_zookeeper.resume()


def test_a_close_ends_even_if_the_server_has_just_stopped_answering(
    own_zookeeper: LocalZooKeeper, make_bench: Callable[..., ZooKeeperBench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_module, "DRAIN_SECONDS", 0.5)
    monkeypatch.setattr(kazoo_session, "CLOSE_SECONDS", 0.5)
    bench = make_bench(own_zookeeper.hosts)
    store = started(bench)
    own_zookeeper.pause()
    pending = store.create("/a")
    failed: list[Any] = []
    pending.addErrback(lambda failure: failed.append(failure.value))
    bench.wait(store.close())
    assert isinstance(failed[0], ConnectionLost)
    with pytest.raises(StoreClosed):
        bench.wait(store.get("/"))
    own_zookeeper.resume()


# -- starting


def test_a_start_without_a_server_says_why_it_failed(
    own_zookeeper: LocalZooKeeper, make_bench: Callable[..., ZooKeeperBench]
) -> None:
    own_zookeeper.stop()
    bench = make_bench(own_zookeeper.hosts, connection_timeout_ms=3000)
    store = bench.store()
    with pytest.raises(StoreFailure, match=f"ZooKeeper at {own_zookeeper.hosts} within 3000 ms: .*refused"):
        bench.wait(store.start())
    with pytest.raises(StoreClosed):
        bench.wait(store.get("/"))


def test_a_start_waits_for_a_server_that_comes_later(
    own_zookeeper: LocalZooKeeper, make_bench: Callable[..., ZooKeeperBench]
) -> None:
    own_zookeeper.stop()
    bench = make_bench(own_zookeeper.hosts + "/later", connection_timeout_ms=60_000)
    store = bench.store()
    starting = store.start()
    own_zookeeper.start()
    bench.wait(starting)
    assert bench.wait(store.create("/a")) == "/a"


def test_a_start_can_be_given_up(own_zookeeper: LocalZooKeeper, make_bench: Callable[..., ZooKeeperBench]) -> None:
    own_zookeeper.stop()
    bench = make_bench(own_zookeeper.hosts)
    closed = bench.store()
    starting = closed.start()
    bench.wait(closed.close())
    with pytest.raises(StoreClosed):
        bench.wait(starting)
    cancelled = bench.store().start()
    cancelled.addErrback(lambda _: "given up")
    cancelled.cancel()
    assert bench.wait(cancelled) == "given up"


@pytest.mark.parametrize("connect", ["", "host:", "host:70000", "host//a", "host/a/../b", "a b:1", "host:1,,host:2"])
def test_a_malformed_connect_string_is_refused(connect: str) -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.connect"):
        ZooKeeperStore(connect, cast(Any, ThreadsOnly()))


# -- the chroot


def test_a_chroot_is_made_and_all_there_is(zookeeper: ZooKeeper, make_bench: Callable[..., ZooKeeperBench]) -> None:
    inner, outer = make_bench(zookeeper.connect + "/deep/down/"), make_bench(zookeeper.connect)
    below, above = started(inner), started(outer)
    events: list[WatchEvent] = []
    assert inner.wait(below.children("/", events.append)) == []
    assert inner.wait(below.create("/n-", sequence=True)) == "/n-0000000000"
    assert inner.wait(below.multi([Create("/m-", sequence=True), SetData("/", b"top")])) == ["/m-0000000001", 1]
    inner.until(lambda: events)
    assert events == [WatchEvent(EventType.CHILDREN, "/")]
    assert outer.wait(above.children("/deep/down")) == ["m-0000000001", "n-0000000000"]
    assert outer.wait(above.get("/deep/down")).data == b"top"
    for call in (lambda: below.delete("/"), lambda: below.create("/"), lambda: below.get("/../..")):
        with pytest.raises(NodeError):
            inner.wait(call())


# -- many requests, large data, and order


def test_many_children_are_read_at_once(bench: ZooKeeperBench) -> None:
    store = started(bench)
    bench.wait(store.create("/many"))
    made = [store.create(f"/many/{number:04}", str(number).encode()) for number in range(1500)]
    order: list[str] = []

    def note(nodes: Any) -> Any:
        order.append("children")
        return nodes

    everything = store.children_data("/many").addCallback(note)
    store.exists("/many").addCallback(lambda _: order.append("exists"))
    nodes = bench.wait(everything)
    assert all(deferred.called for deferred in made)
    assert list(nodes) == [f"{number:04}" for number in range(1500)]
    assert {name: int(node.data) for name, node in nodes.items()} == {name: int(name) for name in nodes}
    bench.until(lambda: len(order) == 2)
    assert order == ["children", "exists"]


def test_a_multi_larger_than_a_request_may_be_is_refused(bench: ZooKeeperBench) -> None:
    store = started(bench)
    with pytest.raises(InvalidNode) as caught:
        bench.wait(store.multi([Create(f"/n{number}", bytes(400_000)) for number in range(4)]))
    assert (caught.value.operation, caught.value.path) == (2, "/n2")
    assert bench.wait(store.children("/")) == []
    assert len(bench.wait(store.multi([Create(f"/n{number}", bytes(500_000)) for number in range(2)]))) == 2


# -- authentication and ACLs


def test_nodes_belong_to_the_credentials_that_made_them(
    zookeeper: ZooKeeper, make_bench: Callable[..., ZooKeeperBench]
) -> None:
    bench = make_bench(zookeeper.connect)
    owner = started(bench, security=ZooKeeperSecurity(digest="pylogd:secret", set_acl=True))
    bench.wait(owner.ensure("/a/b"))
    bench.wait(owner.multi([Create("/a/c", b"1"), SetData("/a", b"2")]))
    same = started(bench, security=ZooKeeperSecurity(digest="pylogd:secret"))
    assert bench.wait(same.set("/a/c", b"by the same")) == 1
    others = [None, ZooKeeperSecurity(digest="pylogd:guess"), ZooKeeperSecurity(digest="other:secret")]
    for security in others:
        store = started(bench, security=security)  # the chroot exists, though the ACL does not allow to create it
        assert bench.wait(store.get("/a/c")).data == b"by the same"
        bench.wait(store.ensure("/a/b"))
        for call in (
            store.set("/a", b""),
            store.create("/a/d"),
            store.delete("/a/c"),
            store.multi([SetData("/a/c", b"")]),
            store.ensure("/a/d/e"),
        ):
            with pytest.raises(AccessDenied):
                bench.wait(call)
    assert bench.wait(owner.get("/a/c")).data == b"by the same"


@pytest.mark.parametrize("chroot", ["", "/cluster"])
def test_nodes_with_secrets_are_read_by_their_owner_only(
    zookeeper: ZooKeeper, make_bench: Callable[..., ZooKeeperBench], chroot: str
) -> None:
    bench = make_bench(zookeeper.connect + chroot)
    owner = started(bench, security=ZooKeeperSecurity(digest="pylogd:secret", set_acl=True))
    bench.wait(owner.ensure("/config/users/alice"))
    bench.wait(owner.ensure("/delegation_token/tokens"))
    bench.wait(owner.create("/configs", b"open"))
    bench.wait(owner.create("/scram_decoy_secret", b"secret"))
    bench.wait(owner.multi([Create("/config/users/bob", b"secret"), Create("/delegation_token/tokens/t", b"secret")]))
    same = started(bench, security=ZooKeeperSecurity(digest="pylogd:secret"))
    assert bench.wait(same.get("/config/users/bob")).data == b"secret"
    for security in (None, ZooKeeperSecurity(digest="pylogd:guess")):
        store = started(bench, security=security)
        assert bench.wait(store.get("/configs")).data == b"open"
        for call in (
            store.get("/config/users/alice"),
            store.get("/config/users/bob"),
            store.children("/config/users"),
            store.children_data("/config/users"),
            store.get("/delegation_token/tokens/t"),
            store.get("/scram_decoy_secret"),
        ):
            with pytest.raises(AccessDenied):
                bench.wait(call)


# -- a server and its clients on TLS


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A server with a TLS port: returns its `host:port` and its certificate as PEM."""
    store, pem = str(tmp_path / "server.p12"), str(tmp_path / "server.pem")
    keytool = str(Path(find_java()).resolve().with_name("keytool"))
    common = ["-alias", "server", "-keystore", store, "-storepass", "changeit"]
    names = ["-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1"]
    for command in (
        ["-genkeypair", "-keyalg", "EC", "-validity", "30", "-storetype", "PKCS12", *names],
        ["-exportcert", "-rfc", "-file", pem],
    ):
        subprocess.run([keytool, *command, *common], check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    with socket.socket() as reserved:  # as LocalZooKeeper reserves its port
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        options = {
            "secureClientPort": str(port),
            "secureClientPortAddress": "127.0.0.1",
            "ssl.keyStore.location": store,
            "ssl.keyStore.password": "changeit",
            "ssl.clientAuth": "none",
        }
        factory = "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
        with LocalZooKeeper(tmp_path / "zookeeper", sync=False, options=options, java_options=[factory]):
            yield f"127.0.0.1:{port}", pem


def test_tls(tls_server: tuple[str, str], make_bench: Callable[..., ZooKeeperBench]) -> None:
    hosts, pem = tls_server
    bench = make_bench(hosts + "/tls", security=ZooKeeperSecurity(tls=True, truststore=pem))
    store = started(bench)
    assert bench.wait(store.create("/a", bytes(300_000))) == "/a"
    assert len(bench.wait(store.get("/a")).data) == 300_000
    stranger = bench.store(security=ZooKeeperSecurity(tls=True), connection_timeout_ms=8000)
    with pytest.raises(StoreFailure, match="certificate verify failed"):
        bench.wait(stranger.start())
    plain = bench.store(security=ZooKeeperSecurity(), connection_timeout_ms=1500)
    with pytest.raises(StoreFailure):
        bench.wait(plain.start())


@pytest.fixture
def sasl_server(tmp_path: Path) -> Iterator[LocalZooKeeper]:
    """A server that accepts the user pylogd only."""
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(
        'Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule required user_pylogd="secret";\n};\n'
    )
    options = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "enforce.auth.enabled": "true",
        "enforce.auth.schemes": "sasl",
    }
    login = f"-Djava.security.auth.login.config={jaas}"
    with LocalZooKeeper(tmp_path / "zookeeper", sync=False, options=options, java_options=[login]) as server:
        yield server


def test_sasl(sasl_server: LocalZooKeeper, make_bench: Callable[..., ZooKeeperBench]) -> None:
    def user(password: str) -> ZooKeeperSecurity:
        return ZooKeeperSecurity(
            sasl_mechanism="DIGEST-MD5", sasl_username="pylogd", sasl_password=password, set_acl=True
        )

    bench = make_bench(sasl_server.hosts + "/sasl", security=user("secret"))
    store = started(bench)
    assert bench.wait(store.create("/a", b"1")) == "/a"
    assert bench.wait(store.set("/a", b"2")) == 1
    for security in (user("guess"), ZooKeeperSecurity()):
        refused = bench.store(security=security, connection_timeout_ms=1500)
        with pytest.raises(StoreFailure):
            bench.wait(refused.start())
