"""Rules that make the name of a principal from the subject of a certificate (`ssl.principal.mapping.rules`, KIP-371).

Strategy: the rules are parsed once; the first whose pattern matches a whole subject decides. With the package
google-re2, patterns take time linear in the subject; without it Python's `re` is used.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from pylogd.config.values import ConfigError

#: Matches one rule, and the separator after it. A slash in a pattern or a replacement is escaped.
_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|\n|$)"
)
_REFERENCE: Final = re.compile(r"\$([0-9]+)|\\(.)")


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


def check_rules(text: str, setting: str) -> None:
    """Raise ConfigError unless `text` is a list of rules."""
    parse_rules(text, setting)


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
