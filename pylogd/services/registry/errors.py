"""The registry's errors in its HTTP API. Each has a status, a code that begins with the status, and a message."""

from __future__ import annotations

from collections.abc import Sequence

from pylogd.base.errors import PylogdError


class RegistryError(PylogdError):
    """The base of all errors. `status` is the HTTP status, `code` the API's error code."""

    status = 500
    code = 50001

    def __init__(self, message: str, *, code: int | None = None) -> None:
        self.message = message
        if code is not None:
            self.code = code
        super().__init__(message)


class SubjectNotFound(RegistryError):
    """The subject does not exist."""

    status, code = 404, 40401


class VersionNotFound(RegistryError):
    """The subject does not have this version."""

    status, code = 404, 40402


class SchemaNotFound(RegistryError):
    """The schema is not registered, or no schema has this id."""

    status, code = 404, 40403


class SubjectSoftDeleted(RegistryError):
    """The subject is soft-deleted already. It can only be deleted permanently."""

    status, code = 404, 40404


class SubjectNotSoftDeleted(RegistryError):
    """A subject can be deleted permanently only after it was soft-deleted."""

    status, code = 404, 40405


class VersionSoftDeleted(RegistryError):
    """The version is soft-deleted already. It can only be deleted permanently."""

    status, code = 404, 40406


class VersionNotSoftDeleted(RegistryError):
    """A version can be deleted permanently only after it was soft-deleted."""

    status, code = 404, 40407


class ConfigNotFound(RegistryError):
    """The subject does not have its own compatibility level."""

    status, code = 404, 40408


class ModeNotFound(RegistryError):
    """The subject does not have its own mode."""

    status, code = 404, 40409


class InvalidSchema(RegistryError):
    """The text is not a valid schema of its type, or the type does not exist. Clients search for the words `Invalid
    schema`.
    """

    status, code = 422, 42201


class InvalidVersion(RegistryError):
    """The version is neither a number from 1 on nor `latest`."""

    status, code = 422, 42202


class InvalidCompatibility(RegistryError):
    """The compatibility level does not exist."""

    status, code = 422, 42203


class InvalidMode(RegistryError):
    """The mode does not exist."""

    status, code = 422, 42204


class OperationNotPermitted(RegistryError):
    """The mode of the subject or of the registry forbids the change."""

    status, code = 422, 42205


class ReferenceExists(RegistryError):
    """Another schema refers to this version."""

    status, code = 422, 42206


class IdDoesNotMatch(RegistryError):
    """The imported schema has another id already."""

    status, code = 422, 42207


class InvalidSubject(RegistryError):
    """The subject's name is not allowed."""

    status, code = 422, 42208


class SchemaTooLarge(RegistryError):
    """The topic does not accept such a large record (`max.message.bytes`)."""

    status, code = 422, 42209


class InvalidRuleSet(RegistryError):
    """The metadata or the rules of a schema have a wrong form."""

    status, code = 422, 42210


class ContextNotEmpty(RegistryError):
    """The context has subjects, and can't be deleted."""

    status, code = 422, 42211


class IncompatibleSchema(RegistryError):
    """The schema is not compatible with earlier versions of the subject, at its compatibility level.

    reasons: the reasons why it is not.

    The code is that of Confluent's registry up to release 8.1, by which clients recognise the error.
    """

    status, code = 409, 409
    reasons: Sequence[str] = ()

    @classmethod
    def with_earlier(cls, subject: str, reasons: Sequence[str]) -> IncompatibleSchema:
        """Return the error for a schema that is not compatible with an earlier schema of the subject."""
        error = cls(
            f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
            f"details: [{', '.join(reasons)}]"
        )
        error.reasons = reasons
        return error


class NotFound(RegistryError):
    """The path does not exist."""

    status, code = 404, 404


class InvalidRequest(RegistryError):
    """The request's body or a parameter is invalid."""

    status, code = 422, 422


class StoreTimedOut(RegistryError):
    """A change was not confirmed within the timeout. It may or may not have been written."""

    status, code = 500, 50002


class ForwardingFailed(RegistryError):
    """The leader of the registries can't be reached, or its answer can't be read."""

    status, code = 500, 50003


class LeaderUnreachable(ForwardingFailed):
    """No connection to the leader could be made, so the leader has not received the request."""


class UnknownLeader(RegistryError):
    """The registries have no leader at present."""

    status, code = 500, 50004


class BodyTooLarge(RegistryError):
    """The request's body is larger than the registry accepts."""

    status, code = 413, 413


class Overloaded(RegistryError):
    """Too many requests wait for a resource. The client may try again later."""

    status, code = 503, 50301


class Unauthorized(RegistryError):
    """The request has no credentials, or wrong ones."""

    status, code = 401, 40101
