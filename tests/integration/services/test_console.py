"""The console as a process on a real broker: pages, messages, actions, and the three ways to log in."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwk, jwt

from pylogd.client import Admin, Consumer, Producer
from pylogd.credentials.passwords import add_user
from pylogd.local.authority import Authority
from tests.consoles import ConsoleProcess, Visitor

KEY = jwk.ECKey.generate_key("P-256", {"kid": "k"})


class Provider:
    """An OpenID provider that logs everybody in as `user`. nonce: in place of the one that was sent; "" for that."""

    def __init__(self) -> None:
        self.user = "grace"
        self.nonce = ""
        self._pending: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                asked = dict(urllib.parse.parse_qsl(query))
                if path == "/authorize":
                    provider._pending["the code"] = asked
                    back = urllib.parse.urlencode({"code": "the code", "state": asked["state"], "iss": provider.url})
                    self.send_response(303)
                    self.send_header("Location", f"{asked['redirect_uri']}?{back}")
                    self.end_headers()
                else:
                    self._send(provider.documents()[path])

            def do_POST(self) -> None:
                form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
                self._send(provider.exchange(form))

            def _send(self, document: Any) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(document).encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def documents(self) -> dict[str, Any]:
        """What it serves to everybody, by path."""
        ends = {f"{name}_endpoint": f"{self.url}/{what}" for name, what in (("authorization", "authorize"),
                                                                            ("token", "token"))}  # fmt: skip
        return {
            "/.well-known/openid-configuration": {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **ends},
            "/keys": {"keys": [KEY.as_dict(private=False)]},
        }

    def exchange(self, form: dict[str, str]) -> dict[str, Any]:
        """Return the id token for a code, if the verifier is that of the challenge."""
        asked = self._pending.pop(form["code"])
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == asked["code_challenge"]
        assert form["client_secret"] == "hush"
        claims = {
            "iss": self.url, "aud": "console", "sub": self.user, "exp": int(time.time()) + 300,
            "nonce": self.nonce or asked["nonce"],
        }  # fmt: skip
        return {"id_token": jwt.encode({"alg": "ES256", "kid": "k"}, claims, KEY, algorithms=["ES256"])}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.server.shutdown()
    made.server.server_close()


class Running:
    """A console that may write, with passwords and an OpenID provider."""

    def __init__(self, folder: Path, bootstrap: str, provider: Provider) -> None:
        self.actions = folder / "actions.jsonl"
        users, oidc, config = folder / "users", folder / "oidc.toml", folder / "console.toml"
        add_user(users, "ada", "correct horse")
        config.write_text(
            f'[clusters.main]\nbootstrap = "{bootstrap}"\n[[masking]]\ntopics = "masked-*"\nfields = ["card"]\n'
        )
        public = "http://127.0.0.1:1"
        text = f'issuer = "{provider.url}"\nclient_id = "console"\nclient_secret = "hush"\npublic_url = "{public}"\n'
        oidc.write_text(text)
        self.process = ConsoleProcess(
            folder / "console.log", "--config", str(config), "--users", str(users), "--allow-writes",
            "--action-log", str(self.actions), "--oidc", str(oidc),
        )  # fmt: skip
        self.public = public

    def visitor(self) -> Visitor:
        """Somebody who has logged in."""
        made = Visitor(self.process.url)
        made.submit("/login", user="ada", password="correct horse")
        assert made.status == 200, made.page
        return made


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, broker: Any, provider: Provider) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("console"), broker.address, provider)
    yield running
    running.process.stop()


@pytest.fixture
def topic(broker: Any, new_topic: Callable[[], str]) -> str:
    """A topic with 20 messages, half of which the group of its name has read."""
    name = new_topic()
    with Admin(broker.address) as admin:
        admin.create_topic(name, 2)
    with Producer(broker.address) as producer:
        for number in range(20):
            producer.send(
                name, json.dumps({"n": number}).encode(), partition=number % 2, headers=[("h", b"%d" % number)]
            )
    with Consumer(broker.address, group_id=name) as consumer:
        consumer.commit({(name, 0): 10, (name, 1): 0})
    return name


def test_pages_show_the_cluster(console: Running, topic: str) -> None:
    visitor = console.visitor()
    visitor.until("/c/main/topics", topic)
    assert "healthy" in visitor.get("/c/main")
    page = visitor.until(f"/c/main/topics/{topic}", f"/groups/{topic}")
    assert ">20<" in page and ">10<" in page, "records, and the group's lag"
    assert visitor.until(f"/c/main/groups/{topic}", f"{topic}:1")
    assert "log.dirs" in visitor.get("/c/main/brokers/1?all=1")


def test_messages_are_searched_and_exported(console: Running, topic: str) -> None:
    visitor = console.visitor()
    visitor.until("/c/main/topics", topic)
    base = f"/c/main/topics/{topic}/messages"
    assert "1 shown of 20 read" in visitor.get(f"{base}?from=oldest&field=n%3D7").replace("\n", "")
    assert "1 shown" in visitor.get(f"{base}?header=h%3D3")
    assert visitor.get(f"{base}?from=yesterday") and visitor.status == 400
    lines = [json.loads(line) for line in visitor.get(f"{base}.jsonl?from=8&count=100").splitlines()]
    assert sorted(line["value"]["n"] for line in lines) == [16, 17, 18, 19]
    assert "pylogd consume" in visitor.get(base)


def test_masked_values_leave_the_console_on_no_way(console: Running, broker: Any, new_topic: Callable[[], str]) -> None:
    name, other = f"masked-{new_topic()}", new_topic()
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic(name, 1)
        admin.create_topic(other, 1)
        producer.send(name, b'{"card": "4111", "n": 1}')
        producer.send(name, b"not JSON: 4111")
    visitor = console.visitor()
    visitor.until("/c/main/topics", name)
    visitor.until("/c/main/topics", other)
    base = f"/c/main/topics/{name}"
    for path in (f"{base}/messages", f"{base}/messages.jsonl"):
        assert "***" in visitor.get(path) and "4111" not in visitor.page
    assert "0 shown of 2 read" in visitor.get(f"{base}/messages?text=4111")
    plan = visitor.submit(f"{base}/replay", partition="0", offset="0", target=name)
    assert "***" in plan and "4111" not in plan
    assert "are masked" in visitor.submit(f"{base}/replay", partition="0", offset="0", target=other)


def test_actions_are_planned_confirmed_and_logged(console: Running, broker: Any, new_topic: Callable[[], str]) -> None:
    name = new_topic()
    visitor = console.visitor()
    with Admin(broker.address) as admin:
        form = {"topic": name, "partitions": "3", "settings": "retention.ms=100000"}
        assert f"pylogd topics create {name} --partitions 3" in visitor.submit("/c/main/create-topic", **form)
        assert name not in [one.name for one in admin.list_topics()], "a plan changes nothing"
        assert "was created" in visitor.confirm("/c/main/create-topic", **form)
        assert len(admin.describe_topic(name).partitions) == 3
        assert "TOPIC_ALREADY_EXISTS" in visitor.submit("/c/main/create-topic", **form) and visitor.status == 422
        visitor.until("/c/main/topics", name)
        assert "at offset 0" in visitor.confirm(f"/c/main/topics/{name}/produce", value="hello", partition="1")
        done = visitor.confirm(f"/c/main/topics/{name}/replay", partition="1", offset="0", target=name)
        assert "The message is in" in done
        visitor.confirm(f"/c/main/topics/{name}/partitions", partitions="5")
        assert len(admin.describe_topic(name).partitions) == 5
        assert "not the topic" in visitor.submit(f"/c/main/topics/{name}/delete", typed="other")
        assert "was deleted" in visitor.confirm(f"/c/main/topics/{name}/delete", typed=name)
        assert name not in [one.name for one in admin.list_topics()]
    lines = [json.loads(line) for line in console.actions.read_text().splitlines()]
    mine = [line for line in lines if name in line["command"]]
    assert {line["user"] for line in mine} == {"ada"} and "hello" not in json.dumps(mine)
    assert [line["outcome"] for line in mine[:2]] == ["begun", "done"]
    assert mine[-1]["action"] == "delete topic"


def test_a_group_is_reset(console: Running, broker: Any, topic: str) -> None:
    visitor = console.visitor()
    visitor.until("/c/main/groups", topic)
    path = f"/c/main/groups/{topic}/reset"
    plan = visitor.submit(path, topic="(all)", to="latest", value="")
    assert f"{topic}-1" in plan and f"{topic}-0" not in plan and "+10" in plan
    with Admin(broker.address) as admin:
        assert admin.group_offsets(topic)[topic, 1].offset == 0  # type: ignore[index]
        assert "1 offsets" in visitor.confirm(path, topic="(all)", to="latest", value="")
        assert admin.group_offsets(topic)[topic, 1].offset == 10  # type: ignore[index]


def test_quotas_and_users(console: Running, broker: Any) -> None:
    visitor = console.visitor()
    form = {"user": "eve", "quota": "producer_byte_rate", "value": "1048576"}
    assert "was set" in visitor.confirm("/c/main/set-quota", **form)
    assert "1,048,576" in visitor.get("/c/main/quotas")
    done = visitor.submit("/c/main/set-user", user="eve", password="a long secret", mechanism="SCRAM-SHA-256")
    assert "has the password" in done and "a long secret" not in done
    assert "SCRAM-SHA-256" in visitor.get("/c/main/users")
    assert "was removed" in visitor.confirm("/c/main/remove-user", user="eve")
    assert "a long secret" not in console.actions.read_text() + console.process.log()


def test_nobody_gets_in_with_a_wrong_password(console: Running) -> None:
    visitor = Visitor(console.process.url)
    assert "Log in" in visitor.get("/c/main/topics")
    visitor.submit("/login", user="ada", password="wrong")
    assert visitor.status == 401
    assert "Log in" in visitor.get("/c/main/topics")


def test_login_at_an_openid_provider(console: Running, provider: Provider) -> None:
    for nonce, status in (("", 200), ("of another login", 401)):
        provider.nonce = nonce
        visitor = Visitor(console.process.url)
        visitor.get("/c/main/groups")
        back = visitor.redirects("/login/oidc", until=console.public)
        page = visitor.get(back.removeprefix(console.public))
        assert visitor.status == status, page
        assert ("grace" in page) is (status == 200)
        visitor.get(back.removeprefix(console.public))
        assert visitor.status == 400, "an answer counts once"
    stranger = Visitor(console.process.url)
    stranger.get(back.removeprefix(console.public))
    assert stranger.status == 400, "only the browser that began a login can end it"


def test_login_by_certificate(tmp_path: Path, broker: Any) -> None:
    authority = Authority()
    server, client = authority.issue("console", ["127.0.0.1"]), authority.issue("katherine")
    ca, own, user = tmp_path / "ca.pem", tmp_path / "own.pem", tmp_path / "user.pem"
    for path, text in ((ca, authority.certificate), (own, server.pem), (user, client.pem)):
        path.write_text(text)
    process = ConsoleProcess(
        tmp_path / "console.log", "-b", broker.address, "--tls-certificate", str(own), "--tls-client-ca", str(ca)
    )
    try:
        assert process.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(ca))
        with pytest.raises(OSError):
            Visitor(process.url, context).get("/c/cluster")
        context.load_cert_chain(str(user))
        assert "katherine" in Visitor(process.url, context).until("/c/cluster", "healthy")
    finally:
        process.stop()
