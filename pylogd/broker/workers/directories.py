"""Determine which log directories belong to workers. Imports no Twisted: a single broker uses it too."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pylogd.config import ConfigError, Settings

#: Worker K has its data in `worker-K` of each log directory.
WORKER_FOLDER: Final = "worker-"
#: A file in a log directory of a broker without --workers (`pylogd.broker.log.checkpoints`).
_SINGLE_FILE: Final = "meta.properties"


def refuse_directories_of_workers(settings: Settings) -> None:
    """Raise ConfigError if a log directory holds the data of workers: a single broker would not find the partitions."""
    for directory in settings.words("log.dirs"):
        if (Path(directory) / f"{WORKER_FOLDER}1").is_dir():
            raise ConfigError(f"{directory} holds the data of workers: start with --workers", "log.dirs")


def left_out(settings: Settings, count: int) -> tuple[Path, ...]:
    """Return the directories of workers after the first `count` that hold partitions."""
    found = []
    for directory in settings.words("log.dirs"):
        for folder in sorted(Path(directory).glob(f"{WORKER_FOLDER}*")):
            number = folder.name.removeprefix(WORKER_FOLDER)
            if number.isdecimal() and int(number) > count and any(folder.glob("*/")):
                found.append(folder)
    return tuple(found)


def refuse_directories_of_one(settings: Settings) -> None:
    """Raise ConfigError if a log directory holds the data of a single broker."""
    for directory in settings.words("log.dirs"):
        if (Path(directory) / _SINGLE_FILE).exists():
            raise ConfigError(
                f"{directory} holds the data of a broker without --workers: give another directory to --workers",
                "log.dirs",
            )
