"""The client file: named profiles, each with the cluster to talk to and the settings for it.

It is TOML, by default `client.toml` in the user's configuration directory for pylogd (`~/.config/pylogd` on Linux):

    profile = "local"                    # which one is used, if neither --profile nor PYLOGD_PROFILE names one

    [profiles.local]
    bootstrap-server = "localhost:9092"

    [profiles.production]
    bootstrap-server = "kafka1:9093,kafka2:9093"
    properties-file = "production.properties"     # Kafka's properties; a relative path is relative to this file
    timeout = 20                                  # seconds, as --timeout
    output = "json"                               # as --output
    schema-registry = "https://registry:8081"

    [profiles.production.properties]              # more of Kafka's properties, which replace those of the file
    "security.protocol" = "SASL_SSL"

A file whose name ends with .properties is one of Kafka's property files, as a single profile without a name:
`bootstrap.servers` in it says where to connect.
"""

# ruff: noqa: PLC0415 - what only some users have is imported where it is needed
from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pylogd.base.errors import PylogdError

FILE_VARIABLE: Final = "PYLOGD_CLIENT_FILE"
PROFILE_VARIABLE: Final = "PYLOGD_PROFILE"
REDACTED: Final = "[hidden]"
_KEYS: Final = ("bootstrap-server", "properties-file", "properties", "timeout", "output", "schema-registry")
_SECRET = re.compile(r"password|secret|jaas|token|credential|\.key$|basic\.auth|api\.?key", re.IGNORECASE)
_FORMATS: Final = ("table", "json", "yaml", "tsv")


class ClientFileError(PylogdError):
    """The client file, or a file that it refers to, can't be used; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How commands talk to one cluster. An attribute is None if the file does not set it.

    properties: Kafka's properties, including those of the file `properties-file`.
    timeout: the value of --timeout, in seconds.
    """

    name: str
    bootstrap_server: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    output: str | None = None
    schema_registry: str | None = None

    def as_document(self) -> dict[str, Any]:
        """Return the profile's contents, without secrets."""
        return {
            "profile": self.name, "bootstrap_server": self.bootstrap_server, "timeout": self.timeout,
            "output": self.output, "schema_registry": self.schema_registry,
            "properties": {name: hide(name, value) for name, value in self.properties.items()},
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientFile:
    """The profiles of a client file.

    chosen: the name of the profile to use by default; "" for none.
    """

    path: Path
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    chosen: str = ""

    def profile(self, name: str = "") -> Profile | None:
        """Return a profile, by default the chosen one; None if none is chosen. Raises ClientFileError."""
        name = name or self.chosen
        if not name and "" not in self.profiles:
            return None
        found = self.profiles.get(name)
        if found is None:
            near = difflib.get_close_matches(name, self.profiles, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(self.profiles) or 'none'}"
            raise ClientFileError(f"{self.path} has no profile {name!r}: {hint}")
        return _profile(self.path, name, found)


def hide(name: str, value: str) -> str:
    """Return the value of a property or setting to show; a placeholder if its name says that it is a secret."""
    return REDACTED if _SECRET.search(name) and not name.endswith((".location", ".file", ".url", ".ms")) else value


def default_path() -> Path:
    """Return the path of the client file: the path in PYLOGD_CLIENT_FILE, or else the usual path.

    Raises ClientFileError if the user has no home directory, as users of systemd's DynamicUser.
    """
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    from platformdirs import user_config_path

    try:
        return user_config_path("pylogd") / "client.toml"
    except RuntimeError as error:
        raise ClientFileError(f"no place for a client file: {error}; set {FILE_VARIABLE}") from error


def read_client_file(path: Path | None = None) -> ClientFile:
    """Read a client file, by default that at `default_path`. One that does not exist has no profiles, unless
    PYLOGD_CLIENT_FILE names it. Raises ClientFileError.
    """
    try:
        where = path or default_path()
    except ClientFileError:
        return ClientFile(Path("client.toml"))  # there is no home directory
    try:
        text = where.read_text("utf-8")
    except FileNotFoundError:
        if path is None and not os.environ.get(FILE_VARIABLE):
            return ClientFile(where)
        raise ClientFileError(f"can't read the client file {where}: it does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ClientFileError(f"can't read the client file {where}: {error}") from None
    return _parse(where, text)


def _parse(path: Path, text: str) -> ClientFile:
    if path.suffix == ".properties":
        properties = _properties(path, text)
        return ClientFile(path, {"": {"properties": properties}})
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClientFileError(f"the client file {path} is not TOML: {error}") from None
    _check_keys(f"the client file {path}", document, ("profile", "profiles"))
    profiles, chosen = document.get("profiles", {}), document.get("profile", "")
    if not isinstance(profiles, dict) or not all(isinstance(one, dict) for one in profiles.values()):
        raise ClientFileError(f"the client file {path}: profiles has to be tables such as [profiles.local]")
    if not isinstance(chosen, str):
        raise ClientFileError(f"the client file {path}: profile has to be the name of one")
    return ClientFile(path, profiles, chosen)


def _check_keys(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it may have {', '.join(known)}"
            raise ClientFileError(f"{where}: unknown key {key!r}; {hint}")


def _profile(path: Path, name: str, table: Mapping[str, Any]) -> Profile:
    where = f"profile {name!r} of {path}" if name else str(path)
    _check_keys(where, table, _KEYS)
    properties: dict[str, str] = {}
    if (file := _text(where, table, "properties-file")) is not None:
        source = path.parent / Path(file).expanduser()
        try:
            properties = _properties(source, source.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ClientFileError(f"{where}: can't read {source}: {error}") from None
    own = table.get("properties", {})
    if not isinstance(own, dict) or not all(isinstance(value, (str, int, float)) for value in own.values()):
        raise ClientFileError(f'{where}: properties has to be a table such as {{ "security.protocol" = "SSL" }}')
    properties |= {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in own.items()}
    timeout, output = table.get("timeout"), _text(where, table, "output")
    if timeout is not None and (not isinstance(timeout, (int, float)) or timeout <= 0):
        raise ClientFileError(f"{where}: timeout has to be a number of seconds")
    if output is not None and output not in _FORMATS:
        raise ClientFileError(f"{where}: output has to be one of {', '.join(_FORMATS)}")
    return Profile(
        name, _text(where, table, "bootstrap-server") or properties.get("bootstrap.servers"), properties,
        None if timeout is None else float(timeout), output, _text(where, table, "schema-registry"),
    )  # fmt: skip


def _text(where: str, table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise ClientFileError(f"{where}: {key} has to be text")
    return value


def _properties(path: Path, text: str) -> dict[str, str]:
    from pylogd.client.properties import parse_properties

    try:
        return parse_properties(text)
    except ValueError as error:
        raise ClientFileError(f"{path}: {error}") from None
