"""`pylogd broker`: run a broker in the foreground. Twisted is imported only when the command runs.

Rule: before the broker listens, nothing is imported that it does not need until then (tests/integration/test_cli.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from pylogd.base.process.lean_imports import import_deferred, imported_lazily
from pylogd.base.process.tuning import pause_garbage_collector
from pylogd.broker.process import options
from pylogd.broker.process.without_tls import import_twisted
from pylogd.broker.workers.directories import refuse_directories_of_workers
from pylogd.cli.output import note, print_line
from pylogd.cli.service_options import log_options, open_log
from pylogd.config import ConfigError, Settings

BAD_SETTINGS = 2
_WORKERS = (
    "Run N brokers, one for each core to use. They share the port of --listen, to which clients connect first; their "
    "own ports come after it. Their node ids begin with --node-id, their data is in DIR/worker-1 to DIR/worker-N."
)


@click.command()
@click.option("-l", "--listen", multiple=True, metavar="HOST:PORT", help=options.LISTEN)
@click.option("-d", "--data", multiple=True, metavar="DIR", help=options.DATA)
@click.option("-c", "--config", type=click.Path(path_type=Path), metavar="FILE", help=options.CONFIG)
@click.option("-n", "--node-id", type=click.IntRange(0), help=options.NODE_ID)
@click.option("-a", "--advertised", metavar="HOST:PORT", help=options.ADVERTISED)
@click.option("--profile", metavar="NAME", help=options.PROFILE)
@click.option("--workers", type=click.IntRange(1, 256), metavar="N", help=_WORKERS)
@log_options
@click.option("-s", "--set", "assignments", multiple=True, metavar="NAME=VALUE", help=options.SET)
@click.pass_context
def broker(
    ctx: click.Context, listen: Sequence[str], data: Sequence[str], config: Path | None, node_id: int | None,
    advertised: str | None, profile: str | None, workers: int | None, logfile: Path | None, log_format: str,
    assignments: Sequence[str],
) -> None:  # fmt: skip
    """Run a broker in the foreground, until SIGTERM or Ctrl-C.

    Once the broker listens, one line on standard output says where; with --log-format json, only the log says it. The
    log goes to standard error. SIGHUP reloads the settings file: settings that can change at run time take effect, and
    the log names those that need a restart.

    \b
    pylogd broker --listen 127.0.0.1:9092 --data /var/lib/pylogd
    pylogd broker --listen 127.0.0.1:0 --data /tmp/scratch \\
        --set log.segment.bytes=16777216
    pylogd broker --config /etc/pylogd/pylogd.toml
    pylogd broker --profile online --set zookeeper.connect=zk1:2181/pylogd
    pylogd broker --workers 4 --listen 127.0.0.1:9092 --data /var/lib/pylogd
    """
    pause_garbage_collector()
    try:
        settings = options.load_settings(
            config, listen=listen, data=data, node_id=None if node_id is None else str(node_id), advertised=advertised,
            profile=profile, assignments=assignments,
        )  # fmt: skip
        if workers is not None:
            ctx.exit(_run_workers(settings, workers, logfile, log_format))
        refuse_directories_of_workers(settings)
    except ConfigError as error:
        note(f"pylogd broker: {error}")
        ctx.exit(BAD_SETTINGS)
    with imported_lazily():
        import_deferred()
        import_twisted(settings)
        from pylogd.broker.process.broker import run_broker  # noqa: PLC0415 - neither --help nor wrong settings need it

    ctx.exit(run_broker(settings, print_line, open_log(logfile, log_format)))


def _run_workers(settings: Settings, count: int, logfile: Path | None, log_format: str) -> int:
    """Run workers until SIGTERM or Ctrl-C. Return the exit status. Raises ConfigError."""
    with imported_lazily():
        import_deferred()
        import_twisted(settings)
        from pylogd.broker.workers.plan import make_plan  # noqa: PLC0415 - imports Twisted
        from pylogd.broker.workers.supervisor import run_workers  # noqa: PLC0415

    return run_workers(make_plan(settings, count), print_line, open_log(logfile, log_format))
