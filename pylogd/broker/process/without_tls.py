"""Keep OpenSSL out of a broker that has no use for TLS.

Twisted imports pyOpenSSL, and with it cryptography and service-identity, wherever they are installed: 80 modules and
13 MB of memory. Its modules do without where the import fails, so they are imported here while it does.

Rules: call `import_twisted` before anything imports a reactor. After it OpenSSL can be imported as ever, for example to
check the signature of a token; only Twisted's own transports and endpoints remain without TLS in this process. So the
operator's own classes, which may use them, count as a use of TLS.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final, cast

from pylogd.config import Settings
from pylogd.config.checks import KAFKA_AUTHORIZERS

#: The modules of Twisted that find out when they are imported whether there is TLS.
_TWISTED: Final = ("twisted.internet.tcp", "twisted.internet.posixbase", "twisted.internet.endpoints")
_OPENSSL: Final = "OpenSSL"


def import_twisted(settings: Settings) -> None:
    """Import Twisted's transports without TLS unless a broker with these settings may use that."""
    if _may_use_tls(settings) or _OPENSSL in sys.modules:
        return
    modules = cast(dict[str, Any], sys.modules)
    modules[_OPENSSL] = None  # an import of it raises ModuleNotFoundError
    try:
        for name in _TWISTED:
            importlib.import_module(name)
    finally:
        del modules[_OPENSSL]


def _may_use_tls(settings: Settings) -> bool:
    authorizer = settings.text("authorizer.class.name")
    return (
        any(listener.protocol.tls for listener in settings.listeners)
        or bool(authorizer and authorizer not in KAFKA_AUTHORIZERS)
        or bool(settings.text("principal.builder.class"))
    )
