"""Options of the commands that run a service: the file and the format of its log."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from pylogd.base.process.logs import LogOutput

Function = TypeVar("Function", bound=Callable[..., object])

#: A copy of the formats in pylogd.base.process.logs, because importing that module would slow down `--help`.
_FORMATS: Final = ("text", "json")
_LOGFILE: Final = "Write the log to a file instead of standard error. SIGHUP and SIGUSR1 reopen it."
_FORMAT: Final = "Lines for people, or a JSON object on each line."


class BadLogFile(click.ClickException):
    """The log file can't be written. Ends the command with exit status 2."""

    exit_code = 2


def log_options(function: Function) -> Function:
    """Add the options --logfile and --log-format; the command gets the arguments `logfile` and `log_format`."""
    file = click.Path(path_type=Path, dir_okay=False)
    function = click.option("--log-format", type=click.Choice(_FORMATS), default=_FORMATS[0], show_default=True,
                            help=_FORMAT)(function)  # fmt: skip
    return click.option("--logfile", type=file, metavar="FILE", help=_LOGFILE)(function)


def open_log(logfile: Path | None, log_format: str) -> LogOutput:
    """Open the log of a service. A file that can't be written ends the command with exit status 2."""
    from pylogd.base.process.logs import LogOutput  # noqa: PLC0415 - imports Twisted, which takes a tenth of a second

    try:
        return LogOutput(None if logfile is None else str(logfile.absolute()), log_format)
    except OSError as error:
        command = click.get_current_context().command_path
        raise BadLogFile(f"{command}: can't write to {logfile}: {error.strerror}") from None


def begin_log(reactor: Any, logfile: Path | None, log_format: str) -> LogOutput:
    """Open the log of a service, write to it from now on, and reopen it at SIGHUP and SIGUSR1."""
    output = open_log(logfile, log_format)
    output.begin()
    output.reopen_on(reactor, signal.SIGHUP, signal.SIGUSR1)
    return output
