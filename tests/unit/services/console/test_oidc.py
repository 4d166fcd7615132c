"""Whom an OpenID provider's token names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwk, jwt

from pylogd.credentials.access_tokens import IssuerKeys, SignedTokens, TokenRules
from pylogd.credentials.conversation import AuthenticationFailed
from pylogd.services.console.oidc import Provider, ProviderOptions
from pylogd.services.console.roles import claims_of

NOW = 1_700_000_000
KEY = jwk.ECKey.generate_key("P-256", {"kid": "k"})


def provider(tmp_path: Path, user_claim: str, **claims: Any) -> Provider:
    """Return a provider that gives a token with these claims for any code."""
    (tmp_path / "keys").write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
    made = Provider(ProviderOptions("https://id", "console", "https://console", user_claim=user_claim))
    rules = TokenRules(("console",), "https://id", subject_claim=user_claim)
    made._tokens = SignedTokens(IssuerKeys((tmp_path / "keys").as_uri(), 300, 10), rules, lambda: NOW * 1000)
    made._document = {"token_endpoint": "https://id/token"}
    whole = {"iss": "https://id", "aud": "console", "exp": NOW + 300, "nonce": "n", "sub": "1", **claims}
    token = jwt.encode({"alg": "ES256", "kid": "k"}, whole, KEY, algorithms=["ES256"])
    made._ask = lambda url, form=None: {"id_token": token}  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("verified", [{}, {"email_verified": False}, {"email_verified": "false"}])
def test_an_email_that_the_provider_has_not_verified_names_nobody(tmp_path: Path, verified: dict[str, Any]) -> None:
    claims = {"email": "grace@example.com", **verified}
    with pytest.raises(AuthenticationFailed, match="email_verified"):
        provider(tmp_path, "email", **claims).user("code", "n", "verifier")
    other = provider(tmp_path, "sub", **claims).user("code", "n", "verifier")
    assert other.user == "1" and "email=grace@example.com" not in other.claims


@pytest.mark.parametrize("verified", [True, "true"])
def test_a_verified_email_names_a_user(tmp_path: Path, verified: Any) -> None:
    found = provider(tmp_path, "email", email="grace@example.com", email_verified=verified).user("code", "n", "v")
    assert found.user == "grace@example.com" and "email=grace@example.com" in found.claims


def test_claims_are_texts_and_lists_of_texts() -> None:
    assert claims_of({"groups": ["a", "b"], "team": "c", "age": 3}) == {"groups=a", "groups=b", "team=c"}
