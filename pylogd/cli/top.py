"""`pylogd top`: topics, groups and brokers, live."""

from __future__ import annotations

import time
from typing import Final

import click

from pylogd.cli.commands import needs_extra
from pylogd.cli.common import bootstrap_option, connect, patience
from pylogd.cli.output import output_option, print_document, print_records
from pylogd.cli.silent_brokers import fail_if_silent
from pylogd.cli.top_sample import COLUMNS, SHOWN, VIEWS, Sampler
from pylogd.client import Admin

#: Seconds for the answers of brokers that have many partitions. A broker that was killed refuses at once.
_SECONDS: Final = 5.0


@click.command()
@click.option("--view", type=click.Choice(VIEWS), default="topics", show_default=True, help="What to show first.")
@click.option("--interval", type=click.FloatRange(0.2), default=2.0, show_default=True, metavar="SECONDS",
              help="How often to look.")  # fmt: skip
@click.option("--once", is_flag=True, help="Look twice, print the view with the rates between, and end; for scripts.")
@output_option
@bootstrap_option
def top(view: str, interval: float, once: bool, bootstrap: str) -> None:
    """Watch topics (rates, sizes), groups (lag, and how it changes) and brokers (leaders, replicas), live.

    Keys: t, g, b for topics, groups, brokers; s sorts by the next column, r the other way round; q ends. Each look asks
    all brokers for the offsets and sizes of all partitions. Needs the extra `pylogd-broker[cli]`, and a terminal,
    unless --once is given; JSON and YAML then have all views.

    The title names brokers that do not answer. What only they know is shown as -, and with --once the exit status is 1.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        sampler = Sampler(admin, patience(_SECONDS))
        if once:
            sampler.look()
            time.sleep(interval)
            found = sampler.look()
            if not print_document({name: found.rows(name) for name in VIEWS}):
                print_records(COLUMNS[view], found.rows(view), SHOWN)
            fail_if_silent(found.silent)
            return
        with needs_extra("cli"):
            from pylogd.cli.top_app import TopApp  # noqa: PLC0415 - an extra
        TopApp(sampler.look, view, interval, bootstrap).run()
