"""The parent of the workers: it starts them, restarts workers that end, and stops them.

Strategy: the parent imports what a broker needs, and forks. So the workers share that memory; the parent itself has no
reactor and no threads, which could not be forked. It waits for signals, and for the lines in which its children report
that they serve. The kernel sends the children SIGTERM if the parent ends, however it ends.

If a child ends before all have served, the command ends. A child that ends later is started again: at once, or after 1,
2, 4 ... seconds if it ended within a minute of its start.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from pylogd import __version__
from pylogd.base.errors import PylogdError
from pylogd.base.process.logs import LogOutput
from pylogd.base.process.shell import (
    STOPPING,
    Shell,
    ignore_late_signals,
    log_is_apart,
    notify_ready,
    process_reactor,
    run_in_foreground,
)
from pylogd.broker.api.first_requests import build_following_codecs, build_opening_codecs
from pylogd.broker.net.shared_port import bound_socket
from pylogd.broker.process.broker import run_broker
from pylogd.broker.workers.plan import Plan
from pylogd.broker.workers.store_process import StoreProcess, make_directory
from pylogd.config import Listener, Settings

_PR_SET_PDEATHSIG: Final = 1
_NAME: Final = "pylogd"
_LOGGER: Final = "pylogd.broker.workers"
#: The name of the parent process in its log lines.
_PROCESS: Final = "supervisor"
_LEFT_OUT: Final = (
    "{folder} holds partitions of a worker that --workers {count} does not start. Without a replica elsewhere they "
    "can't be read or written. Start this worker too; before it is left out, move its partitions with pylogd brokers "
    "decommission"
)
#: A child that has run for this number of seconds is started again at once.
_LONG_RUN_SECONDS: Final = 60.0
_MOST_WAIT_SECONDS: Final = 32.0
#: Modules that workers would otherwise import after the fork. None of them makes a reactor.
_LATE_MODULES: Final = ("pylogd.store.remote", "twisted.internet.epollreactor")
#: Further modules for `metrics.listener`.
_METRICS_MODULES: Final = ("pylogd.broker.metrics.service", "opentelemetry.proto.metrics.v1.metrics_pb2")
_FORWARDED: Final = (signal.SIGHUP, signal.SIGUSR1)
_HANDLED: Final = (*STOPPING, *_FORWARDED, signal.SIGCHLD)


@dataclass(eq=False)
class Child:
    """A process to be kept running.

    run: the child's function. When the child serves, the function calls its argument with a line that reports this.
    """

    name: str
    run: Callable[[Callable[[str], object]], int]
    pid: int = 0
    pipe: int = -1  # the pipe through which the child reports that it serves
    started: float = 0.0
    due: float = 0.0  # the time to start it again, while it has no process
    failures: int = 0
    serves: bool = False


def run_workers(plan: Plan, announce: Callable[[str], object], output: LogOutput) -> int:
    """Run the workers of a plan until SIGTERM or SIGINT. Return the exit status: 1 if they could not start.

    announce: called once with the addresses of the listeners.
    output: the log of all processes.
    """
    with ExitStack() as held:
        # This keeps the shared ports when no worker runs. The sockets do not listen, so no connection waits in them.
        for listener in plan.bootstrap:
            held.enter_context(_bound(listener))
        _load(metrics=bool(plan.workers[0].text("metrics.listener")))
        log = output.logger(_LOGGER, _PROCESS)
        for folder in plan.left_out:
            log.warn(_LEFT_OUT, folder=folder, count=len(plan.workers))
        return Supervisor(_children(plan, output), partial(_summary, plan), announce, output).run()


def _bound(listener: Listener) -> socket.socket:
    try:
        return bound_socket(listener.host, listener.port, shared=True)
    except OSError as error:
        where = f"{listener.host or '*'}:{listener.port}"
        raise PylogdError(f"can't listen on {where}: {error.strerror or error}") from error


def _children(plan: Plan, output: LogOutput) -> list[Child]:
    children = []
    if plan.store is not None:
        file, path = plan.store
        for folder in (path.parent, file.parent):
            make_directory(folder)

        def serve_store(serves: Callable[[str], object]) -> int:
            reactor = process_reactor()
            output.begin()
            shell = Shell(reactor, StoreProcess(file, path, reactor), lambda: f"metadata store {file}")
            output.reopen_on(reactor, *_FORWARDED)
            shell.announce = serves
            return run_in_foreground(shell, reactor, output.program, output.style)

        children.append(Child("the metadata store", serve_store))
    for settings in plan.workers:
        children.append(Child(f"worker {settings.integer('node.id')}", partial(_serve, settings, output)))
    return children


def _serve(settings: Settings, output: LogOutput, serves: Callable[[str], object]) -> int:
    return run_broker(settings, serves, output)


def _summary(plan: Plan) -> str:
    nodes = [worker.integer("node.id") for worker in plan.workers]
    where = ", ".join(str(listener) for listener in plan.bootstrap)
    if len(nodes) == 1:
        return f"{_NAME} {__version__}: 1 worker (node {nodes[0]}) listens on {where}"
    return f"{_NAME} {__version__}: {len(nodes)} workers (nodes {nodes[0]} to {nodes[-1]}) listen on {where}"


def _load(*, metrics: bool) -> None:
    """Load the modules that workers need, so that the workers share their memory."""
    for name in _LATE_MODULES:
        importlib.import_module(name)
    with suppress(ImportError):  # an optional package is missing: a worker reports what to install
        for name in _METRICS_MODULES if metrics else ():
            importlib.import_module(name)
    build_opening_codecs()
    build_following_codecs()
    gc.collect()
    gc.freeze()  # otherwise the first collection of each child would write to all objects


class Supervisor:
    """Keeps children running."""

    def __init__(
        self, children: list[Child], summary: Callable[[], str], announce: Callable[[str], object], output: LogOutput
    ) -> None:
        """The first child must serve before the others are started."""
        self._children = children
        self._summary = summary
        self._announce = announce
        self._output = output
        self._log = output.logger(_LOGGER, _PROCESS)
        self._stopping = self._announced = False
        self._failed = False
        self._signals = -1
        #: The signals that were passed on so far. A restarted child gets them again: it is forked with the settings of
        #: the first start, and may have been down when a signal came.
        self._forwarded: set[int] = set()

    def run(self) -> int:
        """Run until all children have ended on request. Return the exit status."""
        self._signals, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write)
        for number in _HANDLED:
            signal.signal(number, lambda *_: None)
        self._start(self._children[0])
        while any(child.pid for child in self._children) or not self._stopping:
            self._wait()
        ignore_late_signals()
        return 1 if self._failed else 0

    def _wait(self) -> None:
        """Handle the next event: a signal, a child that serves, or a child to be restarted."""
        pipes = {child.pipe: child for child in self._children if child.pipe >= 0}
        due = [child.due for child in self._children if child.due]
        timeout = max(min(due) - time.monotonic(), 0.0) if due and not self._stopping else None
        ready, _, _ = select.select([self._signals, *pipes], [], [], timeout)
        for fd in ready:
            if fd != self._signals:
                self._hear(pipes[fd])
        if self._signals in ready:
            for number in dict.fromkeys(os.read(self._signals, 4096)):  # one request may cause two signals
                self._handle(number)
            self._reap()
        for child in self._children:
            if child.due and child.due <= time.monotonic() and not self._stopping:
                self._start(child)

    def _hear(self, child: Child) -> None:
        line = os.read(child.pipe, 4096)
        os.close(child.pipe)
        child.pipe = -1
        child.serves = bool(line)  # an empty line means that the child has ended
        if child.serves and child.pid and not self._stopping:
            for number in self._forwarded:
                os.kill(child.pid, number)
        if not child.serves or self._announced or self._stopping:
            return
        for other in self._children:
            if not other.started:
                self._start(other)
        if all(one.serves for one in self._children):
            self._announced = True
            summary = self._summary()
            if log_is_apart(self._output):
                self._log.info("{log_text}", log_text=summary)
            self._output.announce(self._announce)(summary)
            notify_ready()

    def _handle(self, number: int) -> None:
        if number in _FORWARDED:
            self._forwarded.add(number)
            self._reopen()
            self._send(number)
        elif number in STOPPING:
            self._stop()

    def _reopen(self) -> None:
        try:
            self._output.reopen()
        except OSError as error:
            self._log.error("can't reopen the log file, still writing to the old one: {error}", error=error)

    def _stop(self) -> None:
        """Ask all children except the first to end; when they have ended, ask the first. Pass on further requests."""
        self._stopping = True
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        first, *others = self._children
        targets = [child for child in others if child.pid]
        if number != signal.SIGTERM or not targets:
            targets.append(first)
        for child in targets:
            if child.pid:
                os.kill(child.pid, number)

    def _start(self, child: Child) -> None:
        child.pipe, write = os.pipe2(os.O_CLOEXEC)
        child.due, child.serves, child.started = 0.0, False, time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        # Otherwise a signal that arrives before the child has its own handlers would be lost, because the inherited
        # handlers of the parent would handle it.
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            child.pid = os.fork()
            if not child.pid:
                _be(child, self._output, write, parent, signals)
        except OSError as error:  # the system can't start another process
            os.close(child.pipe)
            child.pipe = -1
            self._lost(child, f"could not be started ({error.strerror})")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
            os.close(write)

    def _reap(self) -> None:
        while any(child.pid for child in self._children):
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            ended = next(child for child in self._children if child.pid == pid)
            ended.pid = 0
            if ended.pipe >= 0:
                self._hear(ended)
            self._ended(ended, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, code: int) -> None:
        if self._stopping:
            # A child that was just started may not handle SIGTERM yet.
            self._failed = self._failed or code not in (0, -signal.SIGTERM)
            if child is not self._children[0] and not any(other.pid for other in self._children[1:]):
                self._send(signal.SIGTERM)  # the metadata store, which is needed until the end
            return
        why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        self._lost(child, f"has ended ({why})")

    def _lost(self, child: Child, how: str) -> None:
        """Have a child started again, after a pause if it failed recently. Stop if not all children have served yet."""
        if not self._announced:
            self._log.error("{child} {how} before all workers served: stopping", child=child.name, how=how)
            self._failed = True
            self._stop()
            return
        ran = time.monotonic() - child.started
        child.failures = 0 if ran >= _LONG_RUN_SECONDS else child.failures + 1
        wait = 0.0 if child.failures < 2 else min(2.0 ** (child.failures - 2), _MOST_WAIT_SECONDS)
        child.due = time.monotonic() + wait
        when = f"in {wait:.0f} s" if wait else "now"
        self._log.error("{child} {how}: restarting it {when}", child=child.name, how=how, when=when)


def _be(child: Child, output: LogOutput, write: int, parent: int, signals: set[int | signal.Signals]) -> None:
    """Run as a child in the forked process. Never returns.

    signals: the signals that are blocked from now on, as in the parent before the fork.
    """
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (*STOPPING, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for number in _FORWARDED:  # otherwise they would end a process that does not handle them yet
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        os.setpgid(0, 0)  # so Ctrl-C reaches only the parent, which ends the children in order
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            return
        os.environ.pop("NOTIFY_SOCKET", None)  # the parent notifies systemd
        output.process = child.name

        def serves(line: str) -> None:
            os.write(write, line.encode()[:4096])
            os.close(write)

        code = child.run(serves)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
