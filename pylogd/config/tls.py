"""The TLS settings of one listener, and the rules that make principals from the subjects of certificates.

Every setting can be given for a single listener, as `listener.name.<listener>.ssl...`, and changed at run time: new
connections use the new values.

The rules (`ssl.principal.mapping.rules`, KIP-371) are parsed once; the first whose pattern matches a whole subject
decides. With the package google-re2, patterns take time linear in the subject; without it Python's `re` is used.

Must not know: OpenSSL, files (paths are only text here).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pylogd.config.tables import SETTINGS
from pylogd.config.values import ConfigError

_VERSIONS: Final = SETTINGS["ssl.enabled.protocols"].choices
#: Matches one rule, and the separator after it. A slash in a pattern or a replacement is escaped.
_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|\n|$)"
)
_REFERENCE: Final = re.compile(r"\$([0-9]+)|\\(.)")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The values of the settings with the same names, for one listener. `repr` does not show secrets."""

    keystore: str | None = None
    key: str | None = field(default=None, repr=False)
    chain: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore: str | None = None
    trusted: str | None = field(default=None, repr=False)
    client_auth: str = "none"
    principal_rules: str = "DEFAULT"
    versions: tuple[str, ...] = _VERSIONS
    ciphers: tuple[str, ...] = ()
    check_hostname: bool = True


def tls_options(value: Callable[[str], Any], listener: str) -> TlsOptions:
    """Return the TLS settings of a listener. Raises ConfigError if they are incomplete or contradict each other.

    value: returns the value of a setting for the listener.
    listener: the listener's name, for messages.
    """
    keystore, key, chain = (
        value("ssl.keystore.location"), value("ssl.keystore.key"), value("ssl.keystore.certificate.chain")
    )  # fmt: skip
    where = f"listener {listener}: "
    if keystore is None and (key is None or chain is None):
        raise ConfigError(
            f"{where}TLS needs a certificate: set ssl.keystore.location, or ssl.keystore.key and "
            "ssl.keystore.certificate.chain", "ssl.keystore.location",
        )  # fmt: skip
    if keystore is not None and (key is not None or chain is not None):
        raise ConfigError(f"{where}ssl.keystore.location can't be used with ssl.keystore.key", "ssl.keystore.location")
    truststore, trusted = value("ssl.truststore.location"), value("ssl.truststore.certificates")
    if truststore is not None and trusted is not None:
        raise ConfigError(
            f"{where}ssl.truststore.location can't be used with ssl.truststore.certificates",
            "ssl.truststore.location",
        )
    auth = value("ssl.client.auth")
    if auth != "none" and truststore is None and trusted is None:
        raise ConfigError(
            f"{where}ssl.client.auth = {auth} needs ssl.truststore.location or ssl.truststore.certificates",
            "ssl.client.auth",
        )
    return TlsOptions(
        keystore, key, chain, value("ssl.key.password"), truststore, trusted, auth,
        value("ssl.principal.mapping.rules"), value("ssl.enabled.protocols"), value("ssl.cipher.suites") or (),
        value("ssl.endpoint.identification.algorithm") != "",
    )  # fmt: skip


def check_tls_values(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if a TLS setting is malformed."""
    for name, value in values.items():
        if name.endswith("ssl.principal.mapping.rules") and value is not None:
            parse_rules(value, name)
        if name.endswith("ssl.enabled.protocols") and value == ():
            raise ConfigError(f"{name} is empty: name at least one of {', '.join(_VERSIONS)}", name)


class Rule(NamedTuple):
    """One rule.

    pattern: the pattern; None for DEFAULT.
    replacement: texts, and the numbers of groups.
    case: "L" for lower case, "U" for upper case, or "".
    """

    pattern: Any
    replacement: tuple[str | int, ...] = ()
    case: str = ""

    def apply(self, subject: str) -> str | None:
        """Return the name for a subject; None if the rule does not match it."""
        if self.pattern is None:
            return subject
        match = self.pattern.fullmatch(subject)
        if match is None:
            return None
        name = "".join(part if isinstance(part, str) else match.group(part) or "" for part in self.replacement)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


def parse_rules(text: str, setting: str = "ssl.principal.mapping.rules") -> tuple[Rule, ...]:
    """Return the rules in `text`. Raises ConfigError."""
    rules: list[Rule] = []
    at = 0
    while at < len(text.rstrip()):
        match = _RULE.match(text, at)
        if match is None:
            raise ConfigError(
                f'{setting}: "{text[at : at + 100]}" is not a rule; write DEFAULT or RULE:pattern/replacement/[LU]',
                setting,
            )
        at = match.end()
        if match["default"]:
            rules.append(Rule(None))
            continue
        try:
            pattern = _compiled(match["pattern"].replace(r"\/", "/"))
        except Exception as error:
            raise ConfigError(
                f'{setting}: "{match["pattern"][:100]}" is not a regular expression: {error}', setting
            ) from None
        rules.append(Rule(pattern, _parts(match["replacement"], pattern.groups, setting), match["case"]))
    return tuple(rules) or (Rule(None),)


def _compiled(pattern: str) -> Any:
    try:
        import re2 as engine  # noqa: PLC0415  # an optional dependency, and most brokers have no such rules
    except ImportError:
        engine = re
    return engine.compile(pattern)


def _parts(replacement: str, groups: int, setting: str) -> tuple[str | int, ...]:
    parts: list[str | int] = []
    at = 0
    for match in _REFERENCE.finditer(replacement):
        parts.append(replacement[at : match.start()])
        if match[1] is None:
            parts.append(match[2])
        elif int(match[1]) <= groups:
            parts.append(int(match[1]))
        else:
            raise ConfigError(f'{setting}: "{replacement[:100]}" refers to a group that the pattern lacks', setting)
        at = match.end()
    return (*parts, replacement[at:])
