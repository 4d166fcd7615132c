"""`pylogd cluster`: who is there, and what their disks hold."""

from __future__ import annotations

import sys

import click

from pylogd.cli.common import bootstrap_option, connect, format_bytes, json_option, print_json, print_table
from pylogd.client import Admin


@click.command()
@json_option
@bootstrap_option
def cluster(as_json: bool, bootstrap: str) -> None:
    """Show the brokers of the cluster and their data directories.

    In a pipe, a line for each directory: broker, host, port, directory, partitions, bytes.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = admin.describe_cluster()
        directories = admin.describe_log_dirs(broker.node_id for broker in found.brokers)
    brokers = {broker.node_id: broker for broker in found.brokers}
    if as_json:
        print_json(
            {
                "cluster_id": found.cluster_id,
                "controller": found.controller,
                "brokers": [broker._asdict() for broker in found.brokers],
                "log_dirs": [
                    {
                        "broker": d.broker, "path": d.path, "error": d.error, "partitions": len(d.sizes),
                        "bytes": sum(d.sizes.values()), "total_bytes": d.total_bytes, "usable_bytes": d.usable_bytes,
                    }
                    for d in directories
                ],
            }
        )  # fmt: skip
        return
    rows: list[list[object]] = []
    for d in directories:
        total = sum(d.sizes.values())
        size: object = format_bytes(total) if sys.stdout.isatty() else total
        rows.append([str(d.broker), brokers[d.broker].host, str(brokers[d.broker].port), d.path, len(d.sizes), size])
    print_table([">broker", "host", ">port", "directory", ">partitions", ">size"], rows)
