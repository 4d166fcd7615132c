"""A Kerberos realm for the conformance run: the system's MIT Kerberos (Debian: krb5-kdc, krb5-admin-server), by k5test.

The broker's keytab has the key of `kafka/localhost`. `other/localhost` exists too, but its key is not in the keytab, so
a client that asks for that service has a ticket that the broker refuses.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from conformance import checks
from conformance.checks import Missing
from conformance.secure.tasks import Login, Logins
from pylogd.base.ports import free_ports

HOST: Final = "localhost"
SERVICE: Final = "kafka"
_REALM: Final = "CONFORMANCE.TEST"
_SBIN: Final = ":/usr/sbin"
#: What clients of other languages have to be told: no look-ups of names, TCP only.
_CONFIGURATION: Final = {
    "libdefaults": {"dns_canonicalize_hostname": "false", "rdns": "false", "udp_preference_limit": "1"},
    "realms": {"$realm": {"kdc": "localhost:$port0"}},
    "domain_realm": {"localhost": "$realm"},
}


class Realm:
    """A running realm. principal: the broker's. environment: what processes need to find it."""

    def __init__(self, made: Any, folder: Path) -> None:
        self._made = made
        self._folder = folder
        self.environment: Mapping[str, str] = {"KRB5_CONFIG": made.env["KRB5_CONFIG"]}
        self.principal = f"{SERVICE}/{HOST}@{_REALM}"
        self.keytab = str(folder / "broker.keytab")
        for service in (SERVICE, "other"):
            made.addprinc(f"{service}/{HOST}")
        made.extract_keytab(f"{SERVICE}/{HOST}", self.keytab)

    def logins(self, user: str, stranger: str) -> Logins:
        """Make both users, and return their logins."""
        allowed = self._login(user, SERVICE)
        return Logins(allowed, self._login(user, "other", made=True), self._login(stranger, SERVICE))

    def _login(self, user: str, service: str, made: bool = False) -> Login:
        keytab, cache = str(self._folder / f"{user}.keytab"), str(self._folder / f"{user}.cache")
        if not made:
            self._made.addprinc(user)
            self._made.extract_keytab(user, keytab)
            self._made.kinit(user, flags=["-k", "-t", keytab, "-c", cache])
        return Login("GSSAPI", user, principal=f"{user}@{_REALM}", keytab=keytab, cache=cache, service=service)


@contextmanager
def running(folder: Path) -> Iterator[Realm]:
    """Run a realm. The environment of this process points to it meanwhile. Raises Missing."""
    if shutil.which("krb5kdc", path=os.environ["PATH"] + _SBIN) is None:
        raise Missing("krb5kdc is not installed (Debian: apt-get install krb5-kdc krb5-admin-server)")
    checks.tool("krb5-config", "libkrb5-dev")
    checks.fetched([sys.executable, "-m", "pip", "install", "--quiet", "gssapi", "k5test"], "k5test")
    import k5test  # noqa: PLC0415 (it is installed only here)

    before = dict(os.environ)
    os.environ["PATH"] += _SBIN
    [port] = free_ports(1)
    made = None
    try:
        made = k5test.K5Realm(
            realm=_REALM, portbase=port, krb5_conf=_CONFIGURATION, create_host=False, create_user=False, get_creds=False
        )
        realm = Realm(made, folder)
        os.environ.update(realm.environment)
        yield realm
    finally:
        if made is not None:
            made.stop()
        os.environ.clear()
        os.environ.update(before)
