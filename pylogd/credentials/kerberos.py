"""From Kerberos principals to short names, by Kafka's rules (`sasl.kerberos.principal.to.local.rules`).

The first rule that fits decides. `DEFAULT` fits principals of the broker's own realm and gives their first component.
`RULE:[n:format](regular expression)s/pattern/replacement/g/L` fits principals of n components. If there is a regular
expression, it must match the `format` (`$0` is the realm, `$1` the first component). Then the pattern is replaced, once
or with `g` each time, and `L` or `U` makes the name lower or upper case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from pylogd.credentials.conversation import AuthenticationFailed

DEFAULT_RULE: Final = "DEFAULT"
_RULE: Final = re.compile(
    r"RULE:\[(?P<components>[12]):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<pattern>[^/]*)/(?P<replacement>[^/]*)/(?P<all>g)?)?/?(?P<case>[LU])?"
)
_PRINCIPAL: Final = re.compile(r"(?P<first>[^/@]+)(?:/(?P<second>[^/@]+))?(?:@(?P<realm>[^/@]+))?")
_PARAMETER: Final = re.compile(r"\$([0-9])")


class _Rule(NamedTuple):
    components: int
    format: str
    match: re.Pattern[str] | None
    pattern: re.Pattern[str] | None
    replacement: str
    all: bool
    case: str

    def apply(self, parts: Sequence[str]) -> str | None:
        """Return the short name of (realm, component, ...), None if the rule does not fit."""
        if len(parts) - 1 != self.components:
            return None
        name = _PARAMETER.sub(lambda found: parts[int(found[1])] if int(found[1]) < len(parts) else "", self.format)
        if self.match is not None and not self.match.fullmatch(name):
            return None
        if self.pattern is not None:
            name = self.pattern.sub(self.replacement, name, count=0 if self.all else 1)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


class LocalNames:
    """The rules of one listener."""

    def __init__(self, rules: Sequence[str], realm: str) -> None:
        """realm: the broker's realm. Raises ValueError for a malformed rule."""
        self._realm = realm
        self._rules = [None if rule == DEFAULT_RULE else _parse(rule) for rule in rules or (DEFAULT_RULE,)]

    def short_name(self, principal: str) -> str:
        """Return the name of the user behind a Kerberos principal. Raises AuthenticationFailed if no rule fits."""
        match = _PRINCIPAL.fullmatch(principal)
        if match is None:
            raise AuthenticationFailed(f"{principal!r:.200} is not a Kerberos principal")
        realm = match["realm"]
        if realm is None:
            return principal
        parts = [realm, match["first"], *([match["second"]] if match["second"] else [])]
        for rule in self._rules:
            name = (match["first"] if realm == self._realm else None) if rule is None else rule.apply(parts)
            if name is not None:
                if not name or "@" in name or "/" in name:
                    raise AuthenticationFailed(f"a rule makes of {principal!r:.200} {name!r:.200}: no short name")
                return name
        raise AuthenticationFailed(f"no rule of sasl.kerberos.principal.to.local.rules fits {principal!r:.200}")


def _parse(rule: str) -> _Rule:
    found = _RULE.fullmatch(rule.strip())
    if found is None:
        raise ValueError(f'"{rule}" is not a rule; write DEFAULT or RULE:[n:format](match)s/pattern/replacement/g')
    try:
        match = re.compile(found["match"]) if found["match"] else None
        pattern = re.compile(found["pattern"]) if found["pattern"] is not None else None
    except re.error as error:
        raise ValueError(f'"{rule}" has an invalid regular expression: {error}') from None
    replacement = re.sub(r"\$([0-9])", r"\\g<\1>", (found["replacement"] or "").replace("\\", "\\\\"))
    return _Rule(
        int(found["components"]), found["format"], match, pattern, replacement, bool(found["all"]), found["case"] or ""
    )
