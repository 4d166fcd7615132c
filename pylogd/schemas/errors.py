"""What the registry refuses, as its HTTP API says it: a status, a code of five digits that begins with it, a text."""

from __future__ import annotations

from pylogd.errors import PylogdError


class RegistryError(PylogdError):
    """`status` is HTTP's, `code` the API's."""

    status = 500
    code = 50001

    def __init__(self, message: str, *, code: int | None = None) -> None:
        self.message = message
        if code is not None:
            self.code = code
        super().__init__(message)


class SubjectNotFound(RegistryError):
    """No such subject."""

    status, code = 404, 40401


class VersionNotFound(RegistryError):
    """The subject has no such version."""

    status, code = 404, 40402


class SchemaNotFound(RegistryError):
    """No such schema, or none with that id."""

    status, code = 404, 40403


class SubjectSoftDeleted(RegistryError):
    """The subject was deleted already; only a permanent deletion is left."""

    status, code = 404, 40404


class SubjectNotSoftDeleted(RegistryError):
    """What is to be deleted for good has to be deleted first."""

    status, code = 404, 40405


class ConfigNotFound(RegistryError):
    """The subject has no compatibility level of its own."""

    status, code = 404, 40408


class ModeNotFound(RegistryError):
    """The subject has no mode of its own."""

    status, code = 404, 40409


class InvalidSchema(RegistryError):
    """Not a schema, or of a kind that is not known here."""

    status, code = 422, 42201


class InvalidVersion(RegistryError):
    """Neither a number from 1 on nor `latest`."""

    status, code = 422, 42202


class InvalidCompatibility(RegistryError):
    """No such compatibility level."""

    status, code = 422, 42203


class InvalidMode(RegistryError):
    """No such mode."""

    status, code = 422, 42204


class OperationNotPermitted(RegistryError):
    """The mode of the subject, or of the registry, forbids it."""

    status, code = 422, 42205


class ReferenceExists(RegistryError):
    """Another schema refers to it."""

    status, code = 422, 42206


class IncompatibleSchema(RegistryError):
    """The schema and an earlier one of the subject don't go together as the level demands."""

    status, code = 409, 409


class InvalidRequest(RegistryError):
    """A body or a parameter that is not what the API asks for."""

    status, code = 422, 422


class StoreTimedOut(RegistryError):
    """The brokers did not take, or give back, what was written in time. It may have been written."""

    status, code = 500, 50002
