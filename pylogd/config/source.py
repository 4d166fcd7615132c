"""Read settings from a TOML file and from `NAME=VALUE` words.

A file may spell a name quoted (`"log.segment.bytes" = 1`), dotted (`log.segment.bytes = 1`) or below a table (`[log]`).
Must not know: which settings exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pylogd.config.values import ConfigError


def read_file(path: Path) -> dict[str, object]:
    """Return the settings of a TOML file by dotted name. Raises ConfigError if it can't be read or parsed."""
    import tomllib  # noqa: PLC0415 - for those who have a file

    try:
        with path.open("rb") as file:
            tree = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: can't read the configuration: {error.strerror or error}") from error
    except tomllib.TOMLDecodeError as error:
        hint = (
            '; quote a name that others begin with, as in "max.connections" = 100' if "overwrite" in str(error) else ""
        )
        raise ConfigError(f"{path}: not valid TOML: {error}{hint}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: it is not UTF-8 text") from error
    flat: dict[str, object] = {}
    _flatten(tree, "", flat, path)
    return flat


def parse_assignments(words: Iterable[str]) -> dict[str, str]:
    """Return the settings of `NAME=VALUE` words of `--set`. The last of equal names counts.

    Raises ConfigError.
    """
    out: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f'"{word}" is not a setting with a value: write NAME=VALUE')
        out[name.strip()] = value.strip()
    return out


def _flatten(tree: Mapping[str, object], prefix: str, out: dict[str, object], path: Path) -> None:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            _flatten(value, f"{name}.", out, path)
        elif name in out:
            raise ConfigError(f"{path}: {name} is set twice", name)
        else:
            out[name] = value
