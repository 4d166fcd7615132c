"""Who may use the registry: users files, bearer tokens, and the Authorization header."""

from __future__ import annotations

import base64
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwk, jwt
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock

from pylogd.schemas.authentication import Authenticator
from pylogd.schemas.errors import Overloaded, Unauthorized
from pylogd.schemas.passwords import BadUsersFile, PasswordHash, UsersFile, add_user, parse_users
from pylogd.schemas.tokens import BadToken, IssuerKeys, KeysUnavailable, TokenCheck

NOW = 1_700_000_000
SECRET = "a secret of ada's"


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class TestUsersFile:
    def test_a_hash_is_read_as_it_was_written(self) -> None:
        written = PasswordHash.of(SECRET)
        read = PasswordHash.parse(str(written))
        assert read == written and read.matches(SECRET) and not read.matches(SECRET + "x")
        assert SECRET not in str(written) and str(written) not in repr(written)
        assert str(PasswordHash.of(SECRET)) != str(written), "each hash has a salt of its own"

    @pytest.mark.parametrize(
        "line",
        [
            "ada", "ada:clear text", ":$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA", "ada:$scrypt$ln=30,r=8,p=1$c2FsdA$aGFzaA",
            "ada:$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA", f"eve:{PasswordHash.of('x')}",
        ],
    )  # fmt: skip
    def test_a_wrong_line_is_named_without_its_content(self, line: str) -> None:
        good = f"# users\n\neve:{PasswordHash.of('x')}\n"
        assert list(parse_users(good, "users")) == ["eve"]
        with pytest.raises(BadUsersFile, match="users, line 4: ") as caught:
            parse_users(good + line, "users")
        assert "clear text" not in str(caught.value)

    def test_a_user_is_added_and_changed(self, tmp_path: Path) -> None:
        path = tmp_path / "users"
        add_user(path, "ada", "first")
        add_user(path, "bob", "b")
        users = UsersFile(str(path))
        stamp = users.read()
        assert users.is_right("ada", "first") and users.is_right("bob", "b")
        assert not users.is_right("ada", "b") and not users.is_right("eve", "b")
        add_user(path, "ada", "second")
        assert users.is_right("ada", "second") and not users.is_right("ada", "first")
        assert users.read() != stamp and path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ValueError, match="colon"):
            add_user(path, "a:b", "x")

    def test_nobody_is_let_in_while_the_file_is_wrong(self, tmp_path: Path) -> None:
        path = tmp_path / "users"
        add_user(path, "ada", SECRET)
        users = UsersFile(str(path))
        assert users.is_right("ada", SECRET)
        path.write_text("nonsense")
        with pytest.raises(BadUsersFile):
            users.is_right("ada", SECRET)
        path.unlink()
        with pytest.raises(BadUsersFile, match="can't read"):
            users.read()


def key_set(*keys: Any) -> str:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]})


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def token(key: Any, algorithm: str, **claims: Any) -> str:
    whole = {"sub": "ada", "exp": NOW + 600, "iss": "https://id", "aud": "registry", **claims}
    return jwt.encode({"alg": algorithm, "kid": key.kid}, {k: v for k, v in whole.items() if v is not None}, key)


RSA = jwk.RSAKey.generate_key(2048, {"kid": "r"})
EC = jwk.ECKey.generate_key("P-256", {"kid": "e"})
NO_ALGORITHM, SHARED_SECRET = b'{"alg":"none"}', b'{"alg":"HS256","kid":"r"}'
OTHER = jwk.ECKey.generate_key("P-256", {"kid": "e"})


class TestTokens:
    @pytest.fixture
    def keys(self, tmp_path: Path) -> Path:
        path = tmp_path / "keys.json"
        path.write_text(key_set(RSA, EC))
        return path

    @pytest.fixture
    def check(self, keys: Path) -> TokenCheck:
        return TokenCheck(IssuerKeys(str(keys)), issuer="https://id", audience="registry", now_ms=lambda: NOW * 1000)

    def test_a_signed_token_names_its_owner(self, check: TokenCheck) -> None:
        assert check.owner(token(RSA, "RS256")) == check.owner(token(EC, "ES256", aud=["x", "registry"])) == "ada"
        assert check.owner(token(EC, "ES256", exp=NOW - 10)) == "ada", "clocks may differ by 30 s"

    @pytest.mark.parametrize(
        "claims",
        [
            {"exp": NOW - 100}, {"exp": None}, {"nbf": NOW + 100}, {"sub": None}, {"sub": ""}, {"iss": "https://evil"},
            {"iss": None}, {"iss": ["https://id", "https://evil"]}, {"aud": "other"}, {"aud": None},
        ],
    )  # fmt: skip
    def test_a_token_with_wrong_claims_is_refused(self, check: TokenCheck, claims: dict[str, Any]) -> None:
        with pytest.raises(BadToken):
            check.owner(token(EC, "ES256", **claims))

    def test_a_token_with_a_wrong_signature_is_refused(self, check: TokenCheck) -> None:
        good = token(EC, "ES256")
        claims = good.split(".")[1]
        unsigned = f"{encoded(NO_ALGORITHM)}.{claims}."
        # signed with the public key as if that were a shared secret
        content = f"{encoded(SHARED_SECRET)}.{claims}"
        shared = f"{content}.{encoded(hmac.digest(RSA.as_pem(private=False), content.encode(), 'sha256'))}"
        for bad in (token(OTHER, "ES256"), shared, unsigned, good[:-4], "x", "", "." * 20_000):
            with pytest.raises(BadToken):
                check.owner(bad)

    def test_new_keys_are_read_when_a_token_names_one(self, keys: Path) -> None:
        clock = Clock()
        issuer = IssuerKeys(str(keys), clock.seconds)
        check = TokenCheck(issuer, issuer=None, audience=None, now_ms=lambda: NOW * 1000)
        check.read_keys()
        new = jwk.ECKey.generate_key("P-256", {"kid": "new"})
        keys.write_text(key_set(new))
        with pytest.raises(BadToken):
            check.owner(token(new, "ES256"))
        clock.advance(11)
        assert check.owner(token(new, "ES256")) == "ada"
        keys.write_text("not a key set")
        clock.advance(400)
        assert check.owner(token(new, "ES256")) == "ada", "the keys read before stay in use"

    def test_missing_keys_are_an_error_at_the_start(self, tmp_path: Path) -> None:
        with pytest.raises(KeysUnavailable, match="can't read the keys"):
            IssuerKeys(str(tmp_path / "none")).get()


class TestAuthenticator:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def users(self, tmp_path: Path) -> UsersFile:
        add_user(tmp_path / "users", "ada", SECRET)
        return UsersFile(str(tmp_path / "users"))

    def ask(self, authenticator: Authenticator, header: str | None) -> list[Any]:
        """Return the results of a request so far: the name, or a failure."""
        results: list[Any] = []
        Deferred.fromCoroutine(authenticator.name(header, "10.0.0.1")).addBoth(results.append)
        return results

    def make(self, clock: Clock, users: UsersFile | None, monkeypatch: pytest.MonkeyPatch) -> tuple[Authenticator, Any]:
        authenticator = Authenticator(clock, users)
        called: list[Any] = []

        async def at_once(function: Any, *arguments: Any) -> Any:
            called.append(function)
            return await maybeDeferred(function, *arguments)

        monkeypatch.setattr(authenticator, "_in_thread", at_once)
        return authenticator, called

    def test_without_users_and_tokens_everybody_is_let_in(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        authenticator, _ = self.make(clock, None, monkeypatch)
        assert self.ask(authenticator, None) == [""] and authenticator.challenges == []

    def test_a_right_password_is_hashed_once_until_the_file_changes(
        self, clock: Clock, users: UsersFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        authenticator, called = self.make(clock, users, monkeypatch)
        for _ in range(3):
            assert self.ask(authenticator, basic("ada", SECRET)) == ["ada"]
        assert called.count(users.is_right) == 1
        add_user(tmp_path / "users", "ada", "another")
        results = self.ask(authenticator, basic("ada", SECRET))
        clock.advance(2)
        assert isinstance(results[0].value, Unauthorized)

    @pytest.mark.parametrize(
        "header",
        [basic("ada", "wrong"), basic("eve", SECRET), "Basic ???", "Basic " + "YQ==", "Bearer x.y.z", "ada", None],
    )
    def test_wrong_credentials_are_refused_late(
        self, clock: Clock, users: UsersFile, header: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        authenticator, _ = self.make(clock, users, monkeypatch)
        results = self.ask(authenticator, header)
        if header is not None and header.startswith("Basic"):
            clock.advance(0.9)
            assert not results, "a wrong password is answered after a delay"
        clock.advance(0.2)
        assert isinstance(results[0].value, Unauthorized)
        assert authenticator.challenges == ['Basic realm="pylogd schema registry", charset="UTF-8"']

    def test_checks_that_wait_are_limited(
        self, clock: Clock, users: UsersFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        authenticator = Authenticator(clock, users)
        held: list[Deferred[Any]] = []

        def never(*_: Any) -> Deferred[Any]:
            held.append(Deferred())
            return held[-1]

        monkeypatch.setattr("pylogd.schemas.authentication.deferToThreadPool", never)
        waiting = [self.ask(authenticator, basic("ada", SECRET)) for _ in range(51)]
        assert not any(waiting[:50])
        assert isinstance(waiting[50][0].value, Overloaded)
