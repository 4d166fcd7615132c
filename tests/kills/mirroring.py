"""The mirror of a round: processes of `pylogd mirror run`, each of which is started again when it was killed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Final

from pylogd.local.broker import pylogd_command
from tests.kills.comparing import LakeFault
from tests.mirrors import MirrorProcess, write_file

WORKERS: Final = 2
SESSION_MS: Final = 4000
_CONTROLLER: Final = re.compile(r"(\S+) is the controller now")
_WORKER: Final = re.compile(r"worker (\S+) is registered")
_LOG_CHARACTERS: Final = 6000
_DESCRIBE_SECONDS: Final = 60.0


class Mirror:
    """A mirror of one topic between two clusters."""

    def __init__(self, folder: Path, zookeeper: str, source: str, target: str, topic: str) -> None:
        """zookeeper: its hosts. source, target: addresses of the clusters."""
        self._folder = folder
        store = f'zookeeper.connect = "{zookeeper}"\nzookeeper.session.timeout.ms = {SESSION_MS}'
        route = {"source": "serving", "target": "analysis", "topics": [topic]}
        clusters = {"serving": source, "analysis": target}
        self._file = write_file(folder / "mirror.toml", clusters, [route], store)
        self._running: list[MirrorProcess] = []
        self._started = 0

    def keep(self) -> None:
        """Start what does not run. Raises LakeFault if a process ended that nobody killed."""
        for process in list(self._running):
            code = process.process.poll()
            if code is None:
                continue
            if code != -signal.SIGKILL:
                raise LakeFault(f"a process of the mirror ended by {code}:\n{process.log()[-_LOG_CHARACTERS:]}")
            process.kill()  # closes its pipe
            self._running.remove(process)
        while len(self._running) < WORKERS:
            self._started += 1
            self._running.append(MirrorProcess(self._file, self._folder / f"mirror-{self._started}.log"))

    def controller(self) -> list[int]:
        """Return the process that is the controller, or nothing while there is none."""
        return [each.process.pid for each in self._running if _is_controller(each)]

    def workers(self) -> list[int]:
        """Return the processes that are workers and not the controller."""
        others = [each for each in self._running if not _is_controller(each)]
        return [each.process.pid for each in others if _WORKER.search(each.log())]

    def all(self) -> list[int]:
        """Return all processes."""
        return [each.process.pid for each in self._running]

    def lag(self) -> int | None:
        """Return how many records are not copied yet, as `pylogd mirror describe` says; None if it can't tell."""
        command = [*pylogd_command(), "mirror", "describe", str(self._file), "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_DESCRIBE_SECONDS, check=False)
        except subprocess.TimeoutExpired:  # on a machine that is busy
            return None
        if done.returncode:
            return None
        lags = [each["lag"] for each in json.loads(done.stdout)]
        return None if not lags or None in lags else sum(lags)

    def log(self) -> str:
        """Return the end of each running process's log."""
        return "\n".join(f"--- {each.log_path.name}\n{each.log()[-_LOG_CHARACTERS:]}" for each in self._running)

    def check_logs(self) -> None:
        """Raise LakeFault if a process met an error that it did not expect."""
        for path in sorted(self._folder.glob("mirror-*.log")):
            text = path.read_text(errors="replace")
            if "Traceback" in text or "unexpected error" in text:
                raise LakeFault(f"{path}:\n{text[-_LOG_CHARACTERS:]}")

    def kill(self) -> None:
        """Kill all processes."""
        for each in self._running:
            each.kill()
        self._running.clear()


def _is_controller(process: MirrorProcess) -> bool:
    """Return whether a process says that it is the controller. It stays that as long as its session lasts."""
    log = process.log()
    elected, workers = _CONTROLLER.findall(log), _WORKER.findall(log)
    return bool(elected) and elected[-1:] == (workers or elected)[-1:]
