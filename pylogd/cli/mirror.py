"""`pylogd mirror`: copy topics between clusters, and see how far that is. Twisted is imported only when it runs."""

# ruff: noqa: PLC0415 - Twisted, and modules that need it, are imported when the command runs
from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pylogd.base.clock import wall_ms
from pylogd.cli.commands import Commands, Function, needs_extra
from pylogd.cli.output import note, output_option, print_records
from pylogd.cli.service_options import begin_log, http_endpoint, log_options, run_service

if TYPE_CHECKING:
    from pylogd.services.mirror.describing import RouteView
    from pylogd.services.mirror.settings import MirrorSettings, RouteSettings

T = TypeVar("T")


@click.group(cls=Commands)
def mirror() -> None:
    """Copy topics between clusters of pylogd or Apache Kafka.

    A file in TOML has the clusters and the routes between them; docs/mirror.md has an example that works. Start as many
    processes as needed: they find each other in the metadata store that the file names, and share the partitions.

    \b
    pylogd mirror check mirror.toml
    pylogd mirror run mirror.toml
    pylogd mirror describe mirror.toml
    pylogd mirror translate mirror.toml billing --route logs-offline --execute
    """


_file = click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))


def _route_option(function: Function) -> Function:
    return click.option("--route", metavar="NAME", help="The route; needed if the file has several.")(function)


@mirror.command()
@_file
@click.option("--file-only", is_flag=True, help="Check the file itself, and open nothing that it names.")
@output_option
def check(path: str, file_only: bool) -> None:
    """Check a file and all that it names, and print its routes. Nothing is changed.

    The metadata store, clusters, tables and schema registries are opened as `pylogd mirror run` opens them, from here.
    All that does not work is named, with the place in the file, and the exit code is 1 then. Whether topics and files
    can be written is found out as far as that is possible without writing.

    Prints for each route: route, source, target, rename (the name at the target).

    \b
    pylogd mirror check mirror.toml
    pylogd mirror check mirror.toml --file-only
    """
    settings = _settings(path)
    if not file_only:
        _check_places(path, settings)
    rows = [
        {"route": route.name, "source": route.source, "target": route.target, "rename": route.rename}
        for route in settings.routes.values()
    ]
    print_records(["route", "source", "target", "rename"], rows)


@mirror.command()
@_file
@click.option("--role", type=click.Choice(["both", "worker", "controller"]), default="both", show_default=True,
              help="Whether this process copies, may decide who copies what, or both.")  # fmt: skip
@click.option("-l", "--listen", metavar="HOST:PORT",
              help="Serve metrics for Prometheus here by HTTP; port 0 picks a free port.")  # fmt: skip
@log_options
@click.pass_context
def run(ctx: click.Context, /, path: str, role: str, listen: str | None, **logging: Any) -> None:
    """Run a process of a mirror, until SIGTERM or Ctrl-C. A file that changes is read again.

    With zookeeper.connect in the file, several processes share the work; one of them is elected to be the controller.

    \b
    pylogd mirror run mirror.toml
    pylogd mirror run mirror.toml --listen 127.0.0.1:8091
    """
    from pylogd.base.process.shell import process_reactor
    from pylogd.services.mirror.process import NEW_OBJECTS, MirrorProcess

    reactor = process_reactor()
    address = listen and http_endpoint(listen)
    with needs_extra("mirror"):
        process = MirrorProcess(
            reactor, path, works=role != "controller", controls=role != "worker", listen=address
        )  # fmt: skip
    output = begin_log(reactor, **logging)
    ctx.exit(run_service(reactor, process, "pylogd mirror", output, new_objects=NEW_OBJECTS))


@mirror.command()
@_file
@_route_option
@output_option
def describe(path: str, route: str | None) -> None:
    """Show how far each partition is copied, from the clusters themselves. No mirror has to run.

    Prints for each partition: route, topic, partition, target (the topic there), lag (records that are not copied yet,
    null if copying has not begun), seconds (since the last checkpoint, if records wait), source_offset, target_offset.
    """
    settings = _settings(path)
    routes = list(settings.routes.values()) if route is None else [_route(settings, route)]
    rows = []
    for lags in _ask(settings, routes, lambda view: view.lags(wall_ms())):
        for lag in lags:
            at = lag.checkpoint
            rows.append({
                "route": lag.path.route, "topic": lag.path.topic, "partition": lag.path.partition,
                "target": lag.path.target_topic, "lag": lag.records, "seconds": round(lag.age_seconds, 1),
                "source_offset": None if at is None else at.offset,
                "target_offset": None if at is None else at.target_offset,
            })  # fmt: skip
    print_records(
        ["route", "topic", ">partition", "target", ">lag", ">seconds", ">source_offset", ">target_offset"], rows
    )


@mirror.command()
@_file
@click.argument("group")
@_route_option
@click.option("--to-group", metavar="NAME", help="The group at the target; by default it has the same name.")
@click.option("--execute", is_flag=True, help="Commit the offsets at the target. The group must have no members there.")
@output_option
def translate(path: str, group: str, route: str | None, to_group: str | None, execute: bool) -> None:
    """Show where a group of the source continues at the target, so that it can move over; with --execute, move it.

    Stop the group's consumers first. Prints for each partition: topic (at the target), partition, source_offset,
    target_offset, note (if the translation is not exact).
    """
    settings = _settings(path)
    chosen = _route(settings, route)

    async def work(view: RouteView) -> list[Any]:
        found = await view.translate(group)
        if execute and found:
            await view.commit(to_group or group, found)
        return found

    [found] = _ask(settings, [chosen], work)
    rows = [(o.path.target_topic, o.path.partition, o.source, o.target, o.note) for o in found]
    columns = ("topic", "partition", "source_offset", "target_offset", "note")
    print_records(
        ["topic", ">partition", ">source_offset", ">target_offset", "note"],
        [dict(zip(columns, row, strict=True)) for row in rows],
    )
    if not found:
        note(f"group {group} has committed nothing of the topics of route {chosen.name}")
    elif execute:
        note(f"group {to_group or group} continues there at {chosen.target}")


def _settings(path: str) -> MirrorSettings:
    from pylogd.services.mirror.settings import read_file

    return read_file(path)


def _route(settings: MirrorSettings, name: str | None) -> RouteSettings:
    if name is None and len(settings.routes) == 1:
        return next(iter(settings.routes.values()))
    found = settings.routes.get(name or "")
    if found is None:
        known = ", ".join(settings.routes)
        raise click.UsageError(f"--route has to be one of: {known}")
    return found


def _check_places(path: str, settings: MirrorSettings) -> None:
    """Check everything that a file names. For faults, print a line each and raise ClickException."""
    with needs_extra("mirror"):
        from pylogd.services.mirror.checking import Check
    faults = _on_reactor(lambda reactor: Check(settings, reactor).run())
    for fault in faults:
        note(f"{path}: {fault}")
    if faults:
        found = "one thing" if len(faults) == 1 else f"{len(faults)} things"
        raise click.ClickException(f"{found} that {path} names can't be used: a process of the mirror would fail there")


def _ask(
    settings: MirrorSettings, routes: Sequence[RouteSettings], work: Callable[[RouteView], Coroutine[Any, Any, T]]
) -> list[T]:
    """Return the answers to a question that is asked for each route."""
    from pylogd.services.mirror.describing import RouteView

    async def ask(reactor: Any) -> list[T]:
        answers = []
        for route in routes:
            view = RouteView(settings, route, reactor)
            try:
                answers.append(await work(view))
            finally:
                await view.close()
        return answers

    return _on_reactor(ask)


def _on_reactor(work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Return the result of a coroutine that needs a reactor, which runs only for it."""
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

    from pylogd.base.process.shell import process_reactor

    reactor = process_reactor()
    results: list[Any] = []

    def ended(result: Any) -> None:
        results.append(result)
        reactor.stop()

    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(work(reactor)).addBoth(ended))
    reactor.run()
    if not results:
        raise KeyboardInterrupt
    if isinstance(results[0], Failure):
        results[0].raiseException()
    result: T = results[0]
    return result
