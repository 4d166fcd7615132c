"""The settings of authentication: SASL mechanisms, sessions, delegation tokens.

Strategy: a table only. Most settings can be given for a single listener, some for a mechanism on a listener
(`listener.name.<listener>.<mechanism>.<setting>`); `security.mechanisms` reads them.
"""

from __future__ import annotations

from typing import Final

from pylogd.config.storage import HOUR_MS
from pylogd.config.values import INT_MAX, ConfigType, Setting

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
        "The mechanisms that SASL listeners offer. A SASL listener needs at least one. (Kafka's default is GSSAPI.)",
        _GROUP,
        choices=MECHANISMS,
        per_listener=True,
    ),
    Setting(
        "sasl.mechanism.inter.broker.protocol",
        _STRING,
        None,
        "The mechanism by which this broker authenticates at the others, if the listener between brokers uses SASL. "
        "It has to be one of that listener's `sasl.enabled.mechanisms`. The credentials are in `sasl.jaas.config` of "
        "that listener and mechanism. (Kafka's default is GSSAPI.)",
        _GROUP,
        nullable=True,
        choices=MECHANISMS,
    ),
    Setting(
        "sasl.jaas.config",
        _PASSWORD,
        None,
        'Credentials of a mechanism, as Kafka writes them: `LoginModule required option="value" ...;`. Set it for a '
        "mechanism on a listener, as `listener.name.<listener>.<mechanism>.sasl.jaas.config`. PLAIN: each option "
        "`user_<name>` is a user's password. PLAIN and SCRAM on the listener between brokers: `username` and "
        "`password` of the broker itself. OAUTHBEARER there: `clientId`, `clientSecret` and perhaps `scope` for the "
        "token endpoint. GSSAPI: `keyTab` and `principal`, for clients that come and for other brokers. Otherwise "
        "none is needed.",
        _GROUP,
        nullable=True,
        per_listener=True,
    ),
    Setting(
        "sasl.plain.users.file",
        _STRING,
        None,
        "A file with PLAIN's users, in place of `sasl.jaas.config`: lines `user:password`, or with a hashed password "
        "as `pylogd users hash` prints it. The file is read again when it has changed. (Ours.)",
        _GROUP,
        nullable=True,
        per_listener=True,
    ),
    Setting(
        "connections.max.reauth.ms",
        _LONG,
        0,
        "How long a SASL session lasts. A client that has not authenticated again by then is disconnected at its next "
        "request. 0: for ever, but never longer than an access token or a delegation token. May be set for a mechanism "
        "on a listener.",
        _GROUP,
        minimum=0,
        per_listener=True,
    ),
    Setting(
        "connection.failed.authentication.delay.ms",
        _INT,
        100,
        "How long a client whose authentication failed waits for the answer, before its connection is closed.",
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
    ),
    Setting(
        "sasl.kerberos.principal.to.local.rules",
        _LIST,
        ("DEFAULT",),
        "GSSAPI: how a Kerberos principal becomes a user's name; the first rule that fits decides. DEFAULT takes the "
        "first part of principals of the broker's realm; others are `RULE:[n:format](match)s/pattern/replacement/g/L`.",
        _GROUP,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.token.endpoint.url",
        _STRING,
        None,
        "Where this broker gets the token with which it authenticates at other brokers, if "
        "`sasl.mechanism.inter.broker.protocol` is OAUTHBEARER: the token endpoint of an OAuth 2 server (`https:`), "
        "asked with `clientId` and `clientSecret` of `sasl.jaas.config`; or a `file:`, read at each authentication.",
        _OAUTH,
        nullable=True,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        _STRING,
        None,
        "Where the keys that sign access tokens are: a JSON web key set at an `https:` or `file:` URL.",
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
        "One of these has to be in a token's `aud`. Empty: any.",
        _OAUTH,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.expected.issuer",
        _STRING,
        None,
        "What a token's `iss` has to be. Unset: any.",
        _OAUTH,
        nullable=True,
        per_listener=True,
    ),
    Setting(
        "sasl.oauthbearer.expected.scope",
        _LIST,
        (),
        "Each of these has to be in a token's scope. (Ours.)",
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
        "Whether to accept tokens without a signature in place of signed ones. Everybody can make them: for "
        "development only. (Ours; with Kafka it is the default.)",
        _OAUTH,
        per_listener=True,
    ),
    Setting(
        "delegation.token.secret.key",
        _PASSWORD,
        None,
        "The secret from which delegation tokens are made, the same for all brokers. Unset: there are none.",
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
        "How many delegation tokens one user may have asked for that have not ended. Further requests are "
        "POLICY_VIOLATION. (Ours.)",
        _TOKENS,
        minimum=1,
    ),
]
