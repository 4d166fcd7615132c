"""A schema registry as a process, and questions to it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from pylogd.local.broker import pylogd_command

SECONDS = 180
#: The broker's setting with which the first registry is elected as soon as it asks for it.
AT_ONCE = {"group.initial.rebalance.delay.ms": "0"}
FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "int"}],
}
LATER = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "origin", "type": "string", "default": "?"}]}


class RegistryProcess:
    """A running `pylogd schema-registry`. The constructor returns when it answers."""

    def __init__(self, bootstrap: str, log: Path, *options: str) -> None:
        command = [*pylogd_command(), "schema-registry", "-b", bootstrap, "-l", "127.0.0.1:0", *options]
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        line = self.process.stdout.readline().decode() if ready else ""
        if "://" not in line:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the registry does not answer: {line!r} {log.read_text()}")
        self.url = line.split()[-1]

    def stop(self) -> int:
        """Its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._end()

    def kill(self) -> None:
        """At once."""
        os.kill(self.process.pid, signal.SIGKILL)
        self._end()

    def _end(self) -> int:
        assert self.process.stdout is not None
        try:
            return self.process.wait(SECONDS)
        finally:
            self.process.stdout.close()


def ask(url: str, method: str = "GET", body: Any = None) -> tuple[int, Any]:
    """Status and document."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            text = reply.read()
            return reply.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def made(answer: tuple[int, Any]) -> tuple[int, int, int]:
    """Return the status, the id and the version in the answer to a registration."""
    status, document = answer
    return status, document.get("id"), document.get("version")
