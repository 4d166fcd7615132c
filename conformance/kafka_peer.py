"""Apache Kafka from Maven Central, for comparison: a check that fails there too is not pylogd's fault."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from conformance import checks, java_tools
from pylogd.base.ports import free_ports

START_SECONDS = 180.0
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
#: server.properties of a broker that is a controller too
PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@contextmanager
def running(
    folder: Path,
    more: Mapping[str, str] | None = None,
    listeners: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Iterator[str]:
    """Run a Kafka broker on an empty directory and yield the address of its listener PLAINTEXT.

    more: further properties. listeners: addresses of further listeners, by name. options: of the Java machine.
    """
    java = java_tools.java()
    port, controller = free_ports(2)
    properties = folder / "server.properties"
    text = PROPERTIES.format(
        node=0, voters=f"0@127.0.0.1:{controller}", port=port, controller=controller, folder=folder
    )
    extra = dict(more or {})  # of a property that is there twice the second counts
    if listeners:
        own = f"PLAINTEXT://127.0.0.1:{port}"
        others = "".join(f",{name}://{address}" for name, address in listeners.items())
        extra["listeners"] = f"{own},CONTROLLER://127.0.0.1:{controller}{others}"
        extra["advertised.listeners"] = own + others
    properties.write_text(text + "".join(f"{name}={value}\n" for name, value in extra.items()))
    storage = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
    checks.fetched(storage, "a formatted Kafka directory", seconds=180)
    with (folder / "kafka.log").open("wb") as log:
        process = subprocess.Popen(
            [java[0], *options, *java[1:], "kafka.Kafka", str(properties)], stdout=log, stderr=log
        )
    try:
        _wait(process, port)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the broker listens. Raises Missing."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise checks.Missing("Apache Kafka did not start here") from None
            time.sleep(0.1)
