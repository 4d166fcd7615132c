"""Names of subjects in contexts: `:.production:orders` is the subject `orders` of the context `.production`.

Each context has its own subjects, ids and settings. A subject without a context is in the default context, `.`.
Source: Confluent Schema Registry, "Schema contexts".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pylogd.services.registry.errors import InvalidSubject

DEFAULT: Final = "."
#: The context whose settings hold for all contexts without their own.
EVERY: Final = ":.__GLOBAL:"
#: A prefix that means the subjects of all contexts.
WILDCARD: Final = ":*:"
_RESERVED: Final = frozenset({"__GLOBAL", "__EMPTY"})


class QualifiedSubject(NamedTuple):
    """A subject and its context, which begins with a dot."""

    context: str
    subject: str

    @classmethod
    def of(cls, text: str) -> QualifiedSubject:
        """Return the parts of a subject's full name. A context without a subject has "" as its subject."""
        if not text.startswith(":."):
            return cls(DEFAULT, text)
        context, _, subject = text[1:].partition(":")
        return cls(context, subject)

    @property
    def text(self) -> str:
        """The full name, without the context if it is the default one."""
        return prefix(self.context) + self.subject


def prefix(context: str) -> str:
    """Return the prefix of the full names of a context's subjects."""
    return "" if context == DEFAULT else f":{context}:"


def normalized(subject: str) -> str:
    """Return the full name of a subject in its normal form."""
    return QualifiedSubject.of(subject).text


def context_of(subject: str | None) -> str:
    """Return the context of a subject; the default context for None."""
    return DEFAULT if subject is None else QualifiedSubject.of(subject).context


def context_named(text: str) -> str:
    """Return a context from a path: `.production`, `production` and `:.production:` are the same."""
    name = text.removeprefix(":").removesuffix(":")
    return name if name.startswith(".") else "." + name


def beside(subject: str, used: str) -> str:
    """Return the full name of a subject that `subject` refers to. Without a context it is in the same context."""
    found = QualifiedSubject.of(used)
    return found._replace(context=context_of(subject)).text if found.context == DEFAULT else found.text


def check_subject(subject: str, *, settings: bool = False) -> str:
    """Return a subject's full name in its normal form. Raises InvalidSubject.

    settings: whether the name may be that of a context, in a request for its settings.
    """
    found = QualifiedSubject.of(subject)
    refused = any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in subject)
    if refused or found.subject in _RESERVED or (not settings and found.context == context_of(EVERY)):
        raise InvalidSubject(f"The specified subject '{subject}' is not a valid.")
    return found.text
