"""The settings of authentication: SASL mechanisms, sessions, delegation tokens.

Strategy: this is only a table. Most settings can be given for a single listener, some for a mechanism on a listener
(`listener.name.<listener>.<mechanism>.<setting>`). `security.mechanisms` reads them.
"""

from __future__ import annotations

from typing import Final

from pylogd.config.storage import HOUR_MS
from pylogd.config.values import INT_MAX, ConfigType, Mode, Setting

_BOOLEAN, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG
_STRING, _LIST, _PASSWORD = ConfigType.STRING, ConfigType.LIST, ConfigType.PASSWORD
_GROUP: Final = "Authentication"
_OAUTH: Final = "OAUTHBEARER"
_TOKENS: Final = "Delegation tokens"
_DAY_MS: Final = 24 * HOUR_MS

#: The mechanisms that a listener can offer.
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

SASL_SETTINGS: Final = [
    Setting(
        "sasl.enabled.mechanisms",
        _LIST,
        (),
        "The mechanisms that SASL listeners offer. A SASL listener needs at least one. Changes of this and of the "
        "credentials of mechanisms hold for new connections. (Kafka's default is GSSAPI.)",
        _GROUP,
        choices=MECHANISMS,
        per_listener=True,
        mode=Mode.DYNAMIC,
        per_broker=True,
    ),
    Setting(
        "sasl.mechanism.inter.broker.protocol",
        _STRING,
        None,
        "The mechanism with which this broker authenticates at other brokers, if the listener between brokers uses "
        "SASL. It must be one of the listener's `sasl.enabled.mechanisms`. The credentials are in `sasl.jaas.config` "
        "of that listener and mechanism. (Kafka's default is GSSAPI.)",
        _GROUP,
        nullable=True,
        choices=MECHANISMS,
        mode=Mode.DYNAMIC,
        per_broker=True,
    ),
    Setting(
        "sasl.jaas.config",
        _PASSWORD,
        None,
        'Credentials of a mechanism, as Kafka writes them: `LoginModule required option="value" ...;`. Set it for '
        "a mechanism on a listener, as `listener.name.<listener>.<mechanism>.sasl.jaas.config`. PLAIN: each option "
        "`user_<name>` is a user's password. PLAIN and SCRAM on the listener between brokers: `username` and "
        "`password` of the broker itself. OAUTHBEARER on the listener between brokers: `clientId`, `clientSecret` "
        "and optionally `scope` for the token endpoint. GSSAPI: `keyTab` and `principal`, for connections of clients "
        "and to other brokers. In all other cases no credentials are needed.",
        _GROUP,
        nullable=True,
        per_listener=True,
        mode=Mode.DYNAMIC,
        per_broker=True,
    ),
    Setting(
        "sasl.plain.users.file",
        _STRING,
        None,
        "A file with the users of PLAIN, instead of `sasl.jaas.config`. Each line is `user:password`; instead of the "
        "password, a line may have the hash that `pylogd users hash` prints. The file is read again when it has "
        "changed. (Only in pylogd.)",
        _GROUP,
        nullable=True,
        per_listener=True,
    ),
    Setting(
        "connections.max.reauth.ms",
        _LONG,
        0,
        "How long a SASL session lasts. A client that has not authenticated again by then is disconnected at its "
        "next request. 0: without limit, but never longer than an access token or a delegation token. It can be set "
        "for a mechanism on a listener.",
        _GROUP,
        minimum=0,
        per_listener=True,
    ),
    Setting(
        "connection.failed.authentication.delay.ms",
        _INT,
        100,
        "How long the broker delays the answer to a failed authentication. Then it closes the connection.",
        _GROUP,
        minimum=0,
        maximum=60_000,
    ),
    Setting(
        "sasl.kerberos.service.name",
        _STRING,
        None,
        "GSSAPI: the first part of the broker's principal, `<service>/<host>@<REALM>`. Unset: `serviceName` or "
        "`principal` in `sasl.jaas.config`.",
        _GROUP,
        nullable=True,
        per_listener=True,
        mode=Mode.DYNAMIC,
        per_broker=True,
    ),
    Setting(
        "sasl.kerberos.principal.to.local.rules",
        _LIST,
        ("DEFAULT",),
        "GSSAPI: rules that map a Kerberos principal to a user's name; the first rule that matches decides. DEFAULT "
        "uses the first part of principals of the broker's realm; other rules are "
        "`RULE:[n:format](match)s/pattern/replacement/g/L`.",
        _GROUP,
        per_listener=True,
        mode=Mode.DYNAMIC,
        per_broker=True,
    ),
    Setting(
        "sasl.oauthbearer.token.endpoint.url",
        _STRING,
        None,
        "Where this broker gets the token with which it authenticates at other brokers, if "
        "`sasl.mechanism.inter.broker.protocol` is OAUTHBEARER: the `https:` URL of an OAuth 2 server's token "
        "endpoint, which gets `clientId` and `clientSecret` of `sasl.jaas.config`; or a `file:` URL, read at each "
        "authentication.",
        _OAUTH,
        nullable=True,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        _STRING,
        None,
        "The `https:` or `file:` URL of the JSON web key set with which access tokens are verified.",
        _OAUTH,
        nullable=True,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        _LONG,
        HOUR_MS,
        "How long keys are used before they are fetched again.",
        _OAUTH,
        minimum=1,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        _LONG,
        10_000,
        "How long to wait before keys are fetched again after a failure, or for a token whose key is not known.",
        _OAUTH,
        minimum=1,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.expected.audience",
        _LIST,
        (),
        "A token's `aud` must contain one of these values. Empty: any value.",
        _OAUTH,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.expected.issuer",
        _STRING,
        None,
        "The value that a token's `iss` must have. Unset: any value.",
        _OAUTH,
        nullable=True,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.expected.scope",
        _LIST,
        (),
        "A token's scope must contain all of these values. (Only in pylogd.)",
        _OAUTH,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.scope.claim.name",
        _STRING,
        "scope",
        "The claim that has the scope.",
        _OAUTH,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.sub.claim.name",
        _STRING,
        "sub",
        "The claim that has the user's name.",
        _OAUTH,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.clock.skew.seconds",
        _INT,
        30,
        "By how much the clocks of the issuer and of the broker may differ. A session lasts as long as its token is "
        "accepted.",
        _OAUTH,
        minimum=0,
        maximum=3_600,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.unsecured.tokens.enable",
        _BOOLEAN,
        False,
        "Whether to accept unsigned tokens instead of signed ones. Everybody can make such tokens, so use this for "
        "development only. (Only in pylogd; with Kafka it is the default.)",
        _OAUTH,
        per_listener=True,
    ),
    Setting(
        "delegation.token.secret.key",
        _PASSWORD,
        None,
        "The secret from which delegation tokens are made. It must be the same for all brokers. Unset: no delegation "
        "tokens.",
        _TOKENS,
        nullable=True,
    ),
    Setting(
        "delegation.token.max.lifetime.ms",
        _LONG,
        7 * _DAY_MS,
        "How long a delegation token can be renewed.",
        _TOKENS,
        minimum=1,
    ),
    Setting(
        "delegation.token.expiry.time.ms",
        _LONG,
        _DAY_MS,
        "How long a delegation token lasts unless it is renewed.",
        _TOKENS,
        minimum=1,
    ),
    Setting(
        "delegation.token.expiry.check.interval.ms",
        _LONG,
        HOUR_MS,
        "How often expired delegation tokens are deleted.",
        _TOKENS,
        minimum=1,
        maximum=INT_MAX,
    ),
    Setting(
        "delegation.token.max.per.requester",
        _INT,
        10_000,
        "Most unexpired delegation tokens that one user has requested. Further requests get POLICY_VIOLATION. (Only "
        "in pylogd.)",
        _TOKENS,
        minimum=1,
    ),
]
