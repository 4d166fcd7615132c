"""`pylogd cluster health`: a verdict on a cluster, with its reasons, for people, scripts and deployments.

Strategy: what brokers tell any client becomes `Facts`, which `pylogd.client.core.admin.health` judges; the verdict is
the exit status.
"""

from __future__ import annotations

import time
from typing import Final

import click

from pylogd.base.errors import PylogdError
from pylogd.cli.common import bootstrap_option, connect
from pylogd.cli.disks import answered_log_dirs
from pylogd.cli.output import note, output_option, print_document, print_line
from pylogd.client import Admin
from pylogd.client.core.admin.health import MOST_CONFIGS, Facts, Partitions, Reason, judge, stuck_partitions, verdict_of

_LOOK_SECONDS: Final = 0.5
#: The time for brokers to answer about their disks, all at the same time. A later one is reported as silent.
_DISK_SECONDS: Final = 1.5


def _look(bootstrap: str) -> Facts:
    """Ask a cluster for its state. Raises PylogdError."""
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = admin.describe_cluster()
        topics = admin.list_topics(internal=True)
        partitions = Partitions(topics)
        facts = Facts([one.node_id for one in found.brokers], found.controller, partitions)
        directories, silent = answered_log_dirs(admin, facts.brokers, _DISK_SECONDS)
        least = {}
        for name in list(partitions.lacking)[:MOST_CONFIGS]:
            for entry in admin.describe_configs("topic", name, ["min.insync.replicas"]):
                least[name] = int(entry.value or 1)
    facts.directories, facts.silent, facts.least = directories, silent, least
    facts.stuck = stuck_partitions(topics, directories)
    return facts


@click.command()
@click.option("--wait", type=click.FloatRange(0), default=0.0, metavar="SECONDS",
              help="Wait for at most so many seconds until the cluster can be reached and is healthy.")  # fmt: skip
@output_option
@bootstrap_option
@click.pass_context
def health(ctx: click.Context, wait: float, bootstrap: str) -> None:
    """Say whether the cluster is healthy, and why not.

    Exit status: 0 healthy; 3 degraded: everything can be used, and another failure may change that; 4 critical: some
    partitions can't be written or read; 1 if no broker can be reached; 2 for a wrong command line.

    \b
    pylogd cluster health                 a verdict, with the reasons
    pylogd cluster health --wait 300      after a restart, before the next one
    """
    end = time.monotonic() + wait
    told = False
    while True:
        reasons: list[Reason] = []
        error: PylogdError | None = None
        try:
            reasons = judge(_look(bootstrap))
        except PylogdError as failed:
            error = failed
        if (error is None and not reasons) or time.monotonic() >= end:
            break
        if not told:
            told = True
            note(f"waiting: {error or reasons[0].text}")
        time.sleep(_LOOK_SECONDS)
    if error is not None:
        raise error
    verdict = verdict_of(reasons)
    shown = [{"verdict": one.verdict.name.lower(), "code": one.code, "text": one.text} for one in reasons]
    if not print_document({"verdict": verdict.name.lower(), "reasons": shown}):
        print_line(verdict.name.lower())
        for reason in reasons:
            print_line(f"{reason.verdict.name.lower()}: {reason.text}")
    ctx.exit(verdict)
