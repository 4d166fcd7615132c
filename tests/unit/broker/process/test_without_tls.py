"""A broker that has no use for TLS starts without OpenSSL; any use of it brings it back."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("OpenSSL")

#: Imports Twisted for a broker with these settings; prints what then has TLS, and whether OpenSSL can be imported yet.
_PROGRAM = """
import sys
from pylogd.broker.process import options
from pylogd.broker.process.without_tls import import_twisted
import_twisted(options.load_settings(None, listen=[], data=["/x"], node_id=None, advertised=None, profile=None,
                                     assignments=sys.argv[1:]))
loaded = "OpenSSL" in sys.modules
from twisted.internet import endpoints, posixbase, tcp
print(hasattr(tcp.Connection, "startTLS"), endpoints.TLSMemoryBIOFactory is not None, loaded)
import twisted.internet.ssl, OpenSSL.SSL
"""
_KEYSTORE = "ssl.keystore.location=/x/keystore.pem"
_MAP = "listener.security.protocol.map=IN:PLAINTEXT,OUT:SASL_SSL"


def _imported(*settings: str) -> list[str]:
    command = [sys.executable, "-c", _PROGRAM, *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["listeners=SASL_PLAINTEXT://:9093"],
        ["authorizer.class.name=kafka.security.authorizer.AclAuthorizer"],
    ],
)
def test_twisted_has_no_tls_unless_a_broker_may_use_it(settings: list[str]) -> None:
    assert _imported(*settings) == ["False", "False", "False"]


@pytest.mark.parametrize(
    "settings",
    [
        [_KEYSTORE, "listeners=SSL://:9093"],
        [_KEYSTORE, _MAP, "listeners=IN://127.0.0.1:9092,OUT://:9093"],
        ["authorizer.class.name=ours.Authorizer"],
        ["principal.builder.class=ours.Builder"],
    ],
)
def test_twisted_has_tls_where_a_broker_may_use_it(settings: list[str]) -> None:
    assert _imported(*settings) == ["True", "True", "False"]


def test_twistd_imports_transports_when_it_knows_the_settings() -> None:
    program = (
        "import gc, sys\nfrom pylogd.broker import tap\n"
        "late = {'OpenSSL', 'pylogd.broker.broker', 'twisted.internet.reactor', 'twisted.internet.tcp'}\n"
        "early = late & set(sys.modules)\n"
        "options = tap.Options()\noptions.parseOptions(['--data', '/x'])\ntap.makeService(options)\n"
        "print(sorted(early), 'pylogd.broker.broker' in sys.modules, 'OpenSSL' in sys.modules, gc.isenabled())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[] True False False\n", "")
