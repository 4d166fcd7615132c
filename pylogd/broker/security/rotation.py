"""The certificates of a listener, read again whenever they may have changed.

Strategy: a thread compares the files with those read last, reads them if they differ, and makes a new context. New
connections use it, open ones keep theirs. If the new files can't be used, that is logged, and the old certificates stay
in use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.config import ConfigError, TlsOptions
from pylogd.config.tls import Rule, parse_rules
from pylogd.credentials.principal import USER, Principal

try:
    from pylogd.broker.security.distinguished_names import subject_name
    from pylogd.credentials.certificates import (
        Credentials,
        client_context,
        fingerprint,
        read_credentials,
        server_context,
    )
except ImportError as error:  # pyOpenSSL or cryptography is missing
    _missing: ImportError | None = error
else:
    _missing = None

log = Logger()


class _Loaded(NamedTuple):
    seen: tuple[object, ...]
    credentials: Credentials
    context: Any
    between: Any  # the context of connections to other brokers
    rules: tuple[Rule, ...]


def _load(options: TlsOptions, session_id: bytes, before: _Loaded | None) -> _Loaded | None:
    """Return the current contents of the files; None if they have not changed. Raises ConfigError. Runs in a thread."""
    seen = fingerprint(options)
    if before is not None and seen == before.seen:
        return None
    credentials = read_credentials(options)
    if before is not None and credentials.print == before.credentials.print:
        return before._replace(seen=seen)
    context = server_context(credentials, options, session_id)
    between = client_context(credentials, options)
    return _Loaded(seen, credentials, context, between, parse_rules(options.principal_rules))


class ListenerCertificates:
    """The certificates of one listener. Call `load` before use."""

    _loaded: _Loaded

    def __init__(
        self, listener: str, options: Callable[[], TlsOptions], in_thread: Callable[..., Deferred[Any]]
    ) -> None:
        """Arguments:

        options: returns the TLS settings of the listener.
        in_thread: runs a function in a thread.

        Raises ConfigError if the packages for TLS are not installed.
        """
        if _missing is not None:
            raise ConfigError(
                f"listener {listener}: TLS needs pyOpenSSL and service-identity ({_missing}); install them with "
                "pip install 'pylogd-broker[tls]'"
            )
        self._listener = listener
        self._session_id = f"pylogd {listener}".encode()[:32]
        self._options = options
        self._in_thread = in_thread
        self._refreshing: Deferred[None] | None = None
        self._again = False

    async def load(self) -> None:
        """Read the certificates for the first time. Raises ConfigError."""
        self._loaded = await self._in_thread(_load, self._options(), self._session_id, None)

    async def check(self, options: TlsOptions) -> None:
        """Raise ConfigError if the certificates in `options` can't be used. This changes nothing."""
        if options != self._options():
            await self._in_thread(_load, options, self._session_id, None)

    def context(self) -> Any:
        """Return the context for a new connection."""
        return self._loaded.context

    def context_between_brokers(self) -> Any:
        """Return the context for a new connection to another broker, which presents this broker's certificate."""
        return self._loaded.between

    @property
    def check_hostname(self) -> bool:
        """Whether the certificates of other brokers have to name the host of the connection."""
        return self._options().check_hostname

    @property
    def credentials(self) -> Credentials:
        """The certificates in use."""
        return self._loaded.credentials

    def principal(self, certificate: Any) -> Principal:
        """Return the principal of a client with this certificate. Raises ValueError if no rule matches it."""
        subject = subject_name(certificate.subject)
        for rule in self._loaded.rules:
            name = rule.apply(subject)
            if name is not None:
                return Principal(USER, name)
        raise ValueError(f"no rule of ssl.principal.mapping.rules matches its certificate, {subject[:200]}")

    def refresh(self) -> None:
        """Read the certificates again if they have changed. Log the result."""
        if self._refreshing is not None:
            self._again = True
            return
        try:
            options = self._options()
        except ConfigError as error:
            log.error("{error}; the certificates of listener {name} stay in use", error=str(error), name=self._listener)
            return
        done = self._refreshing = self._in_thread(_load, options, self._session_id, self._loaded)
        done.addCallbacks(self._replace, self._failed).addBoth(self._done)

    def _replace(self, fresh: _Loaded | None) -> None:
        if fresh is None:
            return
        changed = fresh.credentials is not self._loaded.credentials
        self._loaded = fresh
        if changed:
            ends = min(one.chain[0].not_valid_after_utc for one in fresh.credentials.identities)
            log.info("Listener {name} uses new certificates, valid until {ends:%Y-%m-%d %H:%M} UTC",
                     name=self._listener, ends=ends)  # fmt: skip

    def _failed(self, failure: Failure) -> None:
        if failure.check(ConfigError):
            log.error("{error}; the certificates of listener {name} stay in use", error=failure.getErrorMessage(),
                      name=self._listener)  # fmt: skip
        else:
            log.failure("Unexpected error while reading the certificates of listener {name}; the old ones stay in use",
                        failure, name=self._listener)  # fmt: skip

    def _done(self, _result: object) -> None:
        self._refreshing = None
        if self._again:
            self._again = False
            self.refresh()
