"""`pylogd broker`: a broker in the foreground. The one subcommand that imports Twisted, and only when it runs.

Rule: nothing that a broker does not need before it listens is imported on the way (tests/integration/test_cli.py).
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import click

from pylogd.config import ConfigError, Settings, parse_assignments

BAD_SETTINGS = 2


@click.command()
@click.option("-l", "--listen", multiple=True, metavar="HOST:PORT",
              help="Where to listen (listeners); port 0 picks a free one. A Twisted endpoint string will do, too. "
              "May be given more than once.")  # fmt: skip
@click.option("-d", "--data", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
              help="Data directory (log.dirs). May be given several times.")  # fmt: skip
@click.option("-c", "--config", type=click.Path(path_type=Path), metavar="FILE", help="A settings file (TOML).")
@click.option("-n", "--node-id", type=click.IntRange(0), help="Unique number of this broker (node.id).")
@click.option("-a", "--advertised", metavar="HOST:PORT", help="Address that clients use (advertised.listeners).")
@click.option("--logfile", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write the log to a file instead of standard error. SIGHUP reopens it.")  # fmt: skip
@click.option("-s", "--set", "assignments", multiple=True, metavar="NAME=VALUE",
              help="Any setting; overrides the file. See `pylogd settings`.")  # fmt: skip
@click.pass_context
def broker(
    ctx: click.Context, listen: Sequence[str], data: Sequence[Path], config: Path | None, node_id: int | None,
    advertised: str | None, logfile: Path | None, assignments: Sequence[str],
) -> None:  # fmt: skip
    """Run a broker in the foreground, until SIGTERM or Ctrl-C.

    One line on standard output says where it listens, once it does; its log goes to standard error. On SIGHUP it reads
    the settings file again, and puts in force what may change while it runs; the log says what needs a restart.

    \b
    pylogd broker --listen 127.0.0.1:9092 --data /var/lib/pylogd
    pylogd broker --listen 127.0.0.1:0 --data /tmp/scratch --set log.segment.bytes=16777216
    pylogd broker --config /etc/pylogd/pylogd.toml
    """
    try:
        overrides: dict[str, object] = dict(parse_assignments(assignments))
        named = {
            "listeners": ",".join(listen),
            "log.dirs": ",".join(map(str, data)),
            "node.id": None if node_id is None else str(node_id),
            "advertised.listeners": advertised,
        }
        overrides.update({name: value for name, value in named.items() if value})
        settings = Settings.load(config, overrides)
    except ConfigError as error:
        click.echo(f"pylogd broker: {error}", err=True)
        ctx.exit(BAD_SETTINGS)
    # What is imported and made now stays: the collector would look at it again and again. The broker enables it.
    gc.disable()
    from pylogd.daemon import run_foreground  # noqa: PLC0415 - neither --help nor wrong settings need it
    from pylogd.reload import LogFile  # noqa: PLC0415

    try:
        log_file = None if logfile is None else LogFile(str(logfile.absolute()))
    except OSError as error:
        click.echo(f"pylogd broker: can't write to {logfile}: {error.strerror}", err=True)
        ctx.exit(BAD_SETTINGS)
    ctx.exit(run_foreground(settings, click.echo, log_file=log_file))
