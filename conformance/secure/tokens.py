"""Access tokens (JWT) of an issuer of the run's own, for OAUTHBEARER."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

from joserfc import jwk, jwt

from conformance.secure.tasks import Login, Logins

ISSUER: Final = "https://issuer.test"
AUDIENCE: Final = "conformance"
_HOUR: Final = 3600
_KEY_ID: Final = "key-1"


class Issuer:
    """An issuer whose public keys are in the file `keys`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = jwk.RSAKey.generate_key(2048, {"kid": _KEY_ID, "use": "sig", "alg": "RS256"})
        self._other = jwk.RSAKey.generate_key(2048, {"kid": _KEY_ID, "use": "sig", "alg": "RS256"})
        self.keys = folder / "keys.json"
        self.keys.write_text(json.dumps({"keys": [self._key.as_dict(private=False)]}))
        self.files: list[str] = []

    def logins(self, user: str, stranger: str) -> Logins:
        """Return the logins of both; the wrong token has the signature of another key."""
        return Logins(
            self._login(user, self._key, "token"),
            self._login(user, self._other, "forged"),
            self._login(stranger, self._key, "token"),
        )

    def _login(self, user: str, key: jwk.RSAKey, kind: str) -> Login:
        now = int(time.time())
        claims = {
            "iss": ISSUER, "aud": AUDIENCE, "sub": user, "scope": "kafka", "iat": now - 10, "exp": now + _HOUR,
        }  # fmt: skip
        token = jwt.encode({"alg": "RS256", "kid": _KEY_ID}, claims, key)
        path = self._folder / f"{user}.{kind}"
        path.write_text(token)
        self.files.append(f"file://{path}")
        return Login("OAUTHBEARER", user, token=token, token_file=str(path))
