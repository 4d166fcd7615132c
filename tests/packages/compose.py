"""Run what the compose file describes, without a container engine: `python -m tests.packages.compose [--results FILE]`.

Each service is a process in a network and a mount namespace of its own, with the command, the volume, the names, the
published port and the restrictions (read-only root, no capabilities) that the file gives it, and the image's health
check. ZooKeeper runs from the jars of pylogd-zookeeper in place of its image. Needs root.

Exit status: 0 if all is as it should be; otherwise the first thing that is not raises.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml

from pylogd.local.broker import pylogd_command
from pylogd.local.launch import bound
from pylogd.local.zookeeper import find_jars, find_java
from tests.packages.roots import CHECKOUT, CommandFailed, require, run
from tests.pages import circumstances, write_page

PACKAGES: Final = CHECKOUT / "packages"
_PREFIX: Final = "pylogd-compose-"
_BRIDGE: Final = "pylogd-compose0"
_NETWORK: Final = "10.213.77"
_PATIENCE_SECONDS: Final = 120.0
_CHUNK: Final = 1 << 16
#: What an engine does between the namespaces and the command: volumes, names, and the restrictions of the file.
_ENTER: Final = """
set -e
mount -t tmpfs tmpfs /var/lib && mkdir /var/lib/pylogd && mount --bind "$VOLUME" /var/lib/pylogd
mount --bind "$HOSTS" /etc/hosts
mount -t tmpfs tmpfs /mnt
mount -o remount,ro,bind / 2>/dev/null || mount --bind / / && mount -o remount,ro,bind /
cd /var/lib/pylogd
exec setpriv --bounding-set -all --inh-caps -all --no-new-privs "$@"
"""


class Service:
    """A service of the file: where it runs, and its process."""

    def __init__(self, name: str, number: int, folder: Path, hosts: Path) -> None:
        self.name = name
        self.address = f"{_NETWORK}.{number}"
        self.namespace = _PREFIX + name
        self.log = folder / f"{name}.log"
        self._environment = {
            **os.environ, "VOLUME": str(folder / name), "HOSTS": str(hosts),
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        (folder / name).mkdir()

    def connect(self, number: int) -> None:
        """Make the namespace, and connect it to the bridge."""
        inside, outside = f"pyc{number}i", f"pyc{number}o"
        run(["ip", "netns", "add", self.namespace])
        run(["ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", self.namespace])
        run(["ip", "link", "set", outside, "master", _BRIDGE, "up"])
        for words in (["link", "set", "lo", "up"], ["addr", "add", f"{self.address}/24", "dev", inside],
                      ["link", "set", inside, "up"]):  # fmt: skip
            run(["ip", "-n", self.namespace, *words])

    def disconnect(self) -> None:
        """End the process, and remove the namespace."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        subprocess.run(["ip", "netns", "delete", self.namespace], capture_output=True, timeout=60, check=False)

    def start(self, command: Sequence[str], *, restricted: bool = True) -> None:
        """Run a command in the namespaces. restricted: as the brokers of the file."""
        enter = ["sh", "-c", _ENTER, "sh"] if restricted else []
        words = bound(["ip", "netns", "exec", self.namespace, *enter, *command], signal.SIGTERM)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, env=self._environment)

    def stop(self) -> int:
        """End the process as an engine does; return its exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(_PATIENCE_SECONDS)

    def inside(self, *command: str) -> str:
        """Run a command in the network of the service; return its output. Raises CommandFailed."""
        return run(["ip", "netns", "exec", self.namespace, *command], seconds=60)

    def wait_until(self, healthy: Callable[[], object]) -> float:
        """Wait until a check raises nothing. Return the seconds."""
        begun = time.monotonic()
        while True:
            try:
                healthy()
            except (CommandFailed, OSError) as error:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > begun + _PATIENCE_SECONDS:
                    raise CommandFailed(f"{self.name}: {error}\n{self.log.read_text()[-2000:]}") from error
                time.sleep(0.2)
            else:
                return time.monotonic() - begun


@contextmanager
def connected(services: Sequence[Service]) -> Iterator[None]:
    """Have a bridge between the services and this machine."""
    run(["ip", "link", "add", _BRIDGE, "type", "bridge"])
    try:
        run(["ip", "addr", "add", f"{_NETWORK}.1/24", "dev", _BRIDGE])
        run(["ip", "link", "set", _BRIDGE, "up"])
        for number, service in enumerate(services, 2):
            service.connect(number)
        yield
    finally:
        for service in services:
            service.disconnect()
        run(["ip", "link", "delete", _BRIDGE])


@contextmanager
def published(ports: str, service: Service) -> Iterator[None]:
    """Forward a port of this machine to a service, as `127.0.0.1:19092:19092` says."""
    host, outer, inner = ports.split(":")

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection((service.address, int(inner)), 5.0)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    with socket.create_server((host, int(outer))) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def zookeeper_command(folder: Path, environment: dict[str, str]) -> list[str]:
    """Return a command that does what ZooKeeper's image does with the environment of the file."""
    commands = environment["ZOO_4LW_COMMANDS_WHITELIST"]
    (folder / "data").mkdir()
    config = folder / "zoo.cfg"
    config.write_text(f"tickTime=2000\ndataDir={folder / 'data'}\nclientPort=2181\n4lw.commands.whitelist={commands}\n"
                      "admin.enableServer=false\n")  # fmt: skip
    jars = ":".join(map(str, find_jars()))
    return [find_java(), "-Xmx256m", "-cp", jars, "org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]


def zookeeper_is_healthy(service: Service) -> None:
    """Ask as the health check of the file does: `srvr` has to be answered with a mode."""
    with socket.create_connection((service.address, 2181), 3.0) as connection:
        connection.sendall(b"srvr")
        answer = b"".join(iter(lambda: connection.recv(_CHUNK), b""))
    if b"Mode" not in answer:
        raise CommandFailed(f"ZooKeeper answers {answer!r}")


def image_check() -> list[str]:
    """Return the command of the image's health check."""
    text = (PACKAGES / "container" / "Containerfile").read_text(encoding="utf-8")
    found = re.search(r"^HEALTHCHECK .*\\\n\s+CMD (\[.*\])$", text, re.MULTILINE)
    assert found is not None
    words: list[str] = ast.literal_eval(found[1])
    return [sys.executable, *words[1:]]


def pylogd(servers: str, *words: str, given: str = "", code: int = 0) -> str:
    """Run a command on this machine, which has to exit with `code`; return its output."""
    done = subprocess.run(
        [*pylogd_command(), *words, "-b", servers], input=given, capture_output=True, text=True, check=False,
        timeout=_PATIENCE_SECONDS * 2,
    )  # fmt: skip
    if done.returncode != code:
        raise CommandFailed(f"pylogd {' '.join(words)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_cluster(brokers: dict[str, Service], described: dict[str, Any]) -> list[str]:
    """Use the cluster from this machine, and stop one of its brokers. Return a line for each thing that was shown."""
    servers = ",".join(service["ports"][0].rpartition(":")[0] for service in described.values())
    pylogd(servers, "cluster", "health", "--wait", "60")
    shown = [f"- three brokers in the cluster; `pylogd cluster health -b {servers}` ends with 0"]
    pylogd(servers, "topics", "create", "payments", "-p", "6")
    given = "".join(f"{number}\n" for number in range(1000))
    pylogd(servers, "produce", "payments", given=given)
    read = pylogd(servers, "consume", "payments", "--until-end")
    if sorted(read.split(), key=int) != given.split():
        raise CommandFailed(f"{len(read.split())} of 1000 records were read")
    [topic] = json.loads(pylogd(servers, "topics", "describe", "payments", "--json"))
    if any(sorted(one["replicas"]) != [1, 2, 3] for one in topic["partitions"]):
        raise CommandFailed(f"not everything has three replicas: {topic}")
    shown.append("- 1,000 records through the published ports, to six partitions of three replicas each, and back")
    *_, (name, last) = brokers.items()
    begun = time.monotonic()
    status = last.stop()
    if status:
        raise CommandFailed(f"{name} ended with {status}\n{last.log.read_text()[-2000:]}")
    shown.append(f"- SIGTERM ends {name} cleanly in {time.monotonic() - begun:.1f} s (`stop_grace_period`: "
                 f"{described[name]['stop_grace_period']})")  # fmt: skip
    pylogd(servers, "cluster", "health", code=3)
    pylogd(servers, "produce", "payments", given=given)
    shown.append("- two of three serve: `cluster health` ends with 3, and acks=all with min.insync.replicas=2 goes on")
    last.start([*pylogd_command(), *described[name]["command"]])
    pylogd(servers, "cluster", "health", "--wait", "120")
    shown.append(f"- {name} is started again: `cluster health --wait 120` ends with 0")
    return shown


def check(folder: Path) -> list[str]:
    """Run the services of the file. Return a line for each thing that was shown."""
    described = yaml.safe_load((PACKAGES / "compose" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    hosts = folder / "hosts"
    services = {name: Service(name, number, folder, hosts) for number, name in enumerate(described, 2)}
    names = [f"{one.address} {one.name}" for one in services.values()]
    hosts.write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
    zookeeper = services.pop("zookeeper")
    of_zookeeper = described.pop("zookeeper")
    with ExitStack() as stack:
        stack.enter_context(connected([zookeeper, *services.values()]))
        command = zookeeper_command(folder / "zookeeper", of_zookeeper["environment"])
        zookeeper.start(command, restricted=False)
        seconds = zookeeper.wait_until(lambda: zookeeper_is_healthy(zookeeper))
        shown = [f"- ZooKeeper is healthy after {seconds:.1f} s, so that the brokers are started (`depends_on`)"]
        for name, service in services.items():
            stack.enter_context(published(described[name]["ports"][0], service))
            service.start([*pylogd_command(), *described[name]["command"]])
        for name, service in services.items():
            seconds = service.wait_until(lambda service=service: service.inside(*image_check()))  # type: ignore[misc]
            shown.append(f"- {name} is healthy after {seconds:.1f} s, by the check of the image")
        return shown + check_cluster(services, described)


def main() -> int:
    """Run it, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.packages.compose", description=__doc__)
    parser.add_argument("--results", type=Path, help="the page to write")
    options = parser.parse_args()
    require("ip", "setpriv")
    with tempfile.TemporaryDirectory(prefix="pylogd-compose-") as folder:
        shown = check(Path(folder))
    lines = [
        "# The compose file", "", "Written by `make compose`.", "", circumstances(), "",
        "The services of packages/compose/compose.yaml as processes in network and mount namespaces of their own, with "
        "the commands, volumes, names, published ports and restrictions of the file. No container engine is needed; "
        "ZooKeeper runs from its jars in place of its image, and the brokers from this machine's Python.",
        "", *shown,
    ]  # fmt: skip
    print("\n".join(lines))
    if options.results:
        write_page(options.results, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
