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

from pylogd.credentials.conversation import AuthenticationFailed, MechanismUnavailable
from pylogd.credentials.passwords import UsersFile, add_user
from pylogd.services.registry.authentication import Authenticator, RegistryTokens
from pylogd.services.registry.errors import Overloaded, Unauthorized

NOW = 1_700_000_000
SECRET = "a secret of ada's"


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


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
    def check(self, keys: Path) -> RegistryTokens:
        return RegistryTokens(str(keys), "https://id", "registry", lambda: NOW * 1000)

    def test_a_signed_token_names_its_owner(self, check: RegistryTokens) -> None:
        assert check.owner(token(RSA, "RS256")) == check.owner(token(EC, "ES256", aud=["x", "registry"])) == "ada"
        assert check.owner(token(EC, "ES256", exp=NOW - 10)) == "ada", "clocks may differ by 30 s"

    @pytest.mark.parametrize(
        "claims",
        [
            {"exp": NOW - 1000}, {"exp": None}, {"nbf": NOW + 3000}, {"sub": None}, {"sub": ""},
            {"iss": "https://evil"}, {"iss": None}, {"iss": ["https://id", "https://evil"]}, {"aud": "other"},
            {"aud": None},
        ],
    )  # fmt: skip
    def test_a_token_with_wrong_claims_is_refused(self, check: RegistryTokens, claims: dict[str, Any]) -> None:
        with pytest.raises(AuthenticationFailed):
            check.owner(token(EC, "ES256", **claims))

    def test_a_token_with_a_wrong_signature_is_refused(self, check: RegistryTokens) -> None:
        good = token(EC, "ES256")
        claims = good.split(".")[1]
        unsigned = f"{encoded(NO_ALGORITHM)}.{claims}."
        # signed with the public key as if that were a shared secret
        content = f"{encoded(SHARED_SECRET)}.{claims}"
        shared = f"{content}.{encoded(hmac.digest(RSA.as_pem(private=False), content.encode(), 'sha256'))}"
        for bad in (token(OTHER, "ES256"), shared, unsigned, good[:-4], "x", "", "." * 70_000):
            with pytest.raises(AuthenticationFailed):
                check.owner(bad)

    def test_missing_keys_are_an_error_at_the_start(self, tmp_path: Path, check: RegistryTokens) -> None:
        check.load()
        with pytest.raises(MechanismUnavailable, match="can't get the keys"):
            RegistryTokens(str(tmp_path / "none"), None, None).load()


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

        def at_once(function: Any, *arguments: Any) -> Deferred[Any]:
            called.append(function)
            return maybeDeferred(function, *arguments)

        monkeypatch.setattr(authenticator._work, "_call", at_once)
        return authenticator, called

    def test_without_users_and_tokens_everybody_is_let_in(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        authenticator, _ = self.make(clock, None, monkeypatch)
        assert self.ask(authenticator, None) == [""] and authenticator.challenges == []

    def test_a_password_is_right_until_the_file_changes(
        self, clock: Clock, users: UsersFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        authenticator, _ = self.make(clock, users, monkeypatch)
        assert self.ask(authenticator, basic("ada", SECRET)) == ["ada"]
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

        monkeypatch.setattr(authenticator._work, "_call", never)
        waiting = [self.ask(authenticator, basic("ada", SECRET)) for _ in range(52)]
        assert not any(waiting[:51])
        assert isinstance(waiting[51][0].value, Overloaded)

    def test_a_user_whose_password_was_right_does_not_wait_for_strangers(
        self, clock: Clock, users: UsersFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        authenticator = Authenticator(clock, users)
        held: list[tuple[Any, ...]] = []

        def later(*call: Any) -> Deferred[Any]:
            held.append(call)
            return Deferred()

        monkeypatch.setattr(authenticator._work, "_call", later)
        assert users.is_right("ada", SECRET)
        for number in range(50):
            self.ask(authenticator, basic("ada", f"wrong {number}"))
        self.ask(authenticator, basic("ada", SECRET))
        assert [call[-1] for call in held] == ["wrong 0", SECRET]
