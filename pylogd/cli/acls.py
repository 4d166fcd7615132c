"""`pylogd acls`: list, add and remove access control lists. The options are those of Kafka's `kafka-acls`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import click

from pylogd.cli.commands import Commands, Function, add_options
from pylogd.cli.common import bootstrap_option, connect
from pylogd.cli.output import confirm, fail_on, note, output_option, print_records
from pylogd.client import Acl, AclFilter, Admin
from pylogd.client.core.admin.access_operations import CLUSTER_NAME, OPERATIONS, PATTERNS

_COLUMNS = ["resource", "pattern", "name", "permission", "operation", "principal", "host"]
#: Operations by their names without case and underscores: `ClusterAction` is CLUSTER_ACTION.
_BY_NAME = {name.replace("_", "").lower(): name for name in OPERATIONS if name != "ANY"}


@click.group(cls=Commands)
def acls() -> None:
    """List, add and remove access control lists (ACLs).

    An ACL allows a principal to do something to topics, groups or the cluster, or denies it; what is denied is refused
    even if another ACL allows it. Brokers decide by ACLs if authorizer.class.name says so; see docs/authorization.md.

    \b
    pylogd acls list
    pylogd acls list --topic orders --resource-pattern-type match
    pylogd acls add --allow-principal User:alice --producer --topic orders
    pylogd acls add --allow-principal User:bob --consumer \\
        --topic orders --group billing
    pylogd acls add --deny-principal 'User:*' --deny-host 10.9.0.0/16 \\
        --operation Write --topic '*'
    pylogd acls remove --topic orders
    """


def _resources(patterns: Sequence[str], default: str) -> Callable[[Function], Function]:
    """Add the options that name resources.

    patterns: the values of --resource-pattern-type.
    """

    def add(function: Function) -> Function:
        return add_options(
            function,
            click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="A topic, or *. Repeatable."),
            click.option("-g", "--group", "groups", multiple=True, metavar="GROUP",
                         help="A consumer group, or *. Repeatable."),
            click.option("--cluster", is_flag=True, help="The cluster."),
            click.option("--transactional-id", "transactional_ids", multiple=True, metavar="ID",
                         help="A transactional id, or *. Repeatable."),
            click.option("--delegation-token", "tokens", multiple=True, metavar="ID",
                         help="A delegation token, or *. Repeatable."),
            click.option("--user-principal", "users", multiple=True, metavar="PRINCIPAL",
                         help="A user, as a resource of delegation tokens. Repeatable."),
            click.option("--resource-pattern-type", "pattern", default=default, show_default=True,
                         type=click.Choice(patterns, case_sensitive=False),
                         help="How the names select resources. prefixed: all whose names begin so."),
        )  # fmt: skip

    return add


def _entries(function: Function) -> Function:
    """Add the options of an ACL: principal, host, operation, resource."""
    return add_options(
        function,
        click.option("--allow-principal", "allowed", multiple=True, metavar="TYPE:NAME",
                     help="Who is allowed, for example User:alice; 'User:*' is everybody. Repeatable."),
        click.option("--deny-principal", "denied", multiple=True, metavar="TYPE:NAME",
                     help="Who is denied. Repeatable."),
        click.option("--allow-host", "allowed_hosts", multiple=True, metavar="HOST", default=["*"], show_default=True,
                     help="From where: an address, a network such as 10.1.0.0/16, or *. Repeatable."),
        click.option("--deny-host", "denied_hosts", multiple=True, metavar="HOST", default=["*"], show_default=True,
                     help="From where it is denied. Repeatable."),
        click.option("-o", "--operation", "operations", multiple=True, metavar="OPERATION", callback=_check_operations,
                     help="Read, Write, Create, Delete, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, "
                     "IdempotentWrite, CreateTokens, DescribeTokens or All. Repeatable; default All."),
        click.option("--producer", is_flag=True,
                     help="What a producer needs: Write, Describe and Create for --topic, Write and Describe for "
                     "--transactional-id."),
        click.option("--consumer", is_flag=True,
                     help="What a consumer needs: Read and Describe for --topic, Read for --group."),
        click.option("--idempotent", is_flag=True, help="With --producer: IdempotentWrite on the cluster too."),
    )  # fmt: skip


def _check_operations(_ctx: click.Context, _parameter: click.Parameter, words: Sequence[str]) -> list[str]:
    found = []
    for word in words:
        name = _BY_NAME.get(word.replace("_", "").lower())
        if name is None:
            raise click.BadParameter(f"{word!r} is not an operation")
        found.append(name)
    return found


@acls.command("list")
@_resources([name.lower() for name in PATTERNS], "any")
@click.option("-p", "--principal", "principals", multiple=True, metavar="TYPE:NAME", help="Only of these. Repeatable.")
@output_option
@bootstrap_option
def list_(pattern: str, principals: Sequence[str], bootstrap: str, **resources: Any) -> None:
    """List ACLs: all, or those of some resources or principals.

    With --resource-pattern-type match, everything that concerns the resources: prefixes of their names and * too.

    Prints for each ACL: resource, pattern, name, permission, operation, principal, host.
    """
    named = [*_named(resources)] or [("ANY", None)]
    filters = [
        AclFilter(kind, name, pattern.upper(), who) for (kind, name), who in product(named, principals or (None,))
    ]
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = sorted({acl for wanted in filters for acl in admin.list_acls(wanted)})
    _show(found)


@acls.command()
@_resources(["literal", "prefixed"], "literal")
@_entries
@bootstrap_option
def add(bootstrap: str, **options: Any) -> None:
    """Add ACLs. Those that exist stay.

    \b
    pylogd acls add --allow-principal User:alice --operation Read \\
        --topic orders --group billing
    pylogd acls add --allow-principal User:alice --producer \\
        --topic logs- --resource-pattern-type prefixed
    pylogd acls add --allow-principal User:admin --operation Alter --cluster
    """
    wanted = [acl for acl in _acls(options) if acl.principal]
    if not wanted:
        raise click.UsageError("name somebody with --allow-principal or --deny-principal")
    with connect(bootstrap) as connected, Admin(connected) as admin:
        outcome = admin.create_acls(wanted)
    fail_on([f"{_text(acl)}: {error}" for acl, error in outcome.items() if error is not None])


@acls.command()
@_resources([name.lower() for name in PATTERNS], "literal")
@_entries
@click.option("-y", "--yes", "--force", "yes", is_flag=True, help="Don't ask for confirmation.")
@output_option
@bootstrap_option
def remove(yes: bool, bootstrap: str, **options: Any) -> None:
    """Remove ACLs: all of some resources, or those of some principals. On a terminal, asks for confirmation.

    Prints the ACLs that were removed.

    \b
    pylogd acls remove --topic orders            all ACLs of the topic
    pylogd acls remove --topic orders --allow-principal User:alice \\
        --operation Read
    """
    filters = [_filter(acl, options) for acl in _acls(options)]
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = sorted({acl for wanted in filters for acl in admin.list_acls(wanted)})
        if not found:
            note("There are no such ACLs.")
        elif not yes and sys.stdin.isatty():
            _show(found)
            confirm(f"Remove these {len(found)} ACLs?", yes)
        removed = admin.delete_acls(filters) if found else []
    _show(removed)


def _named(options: Mapping[str, Any]) -> Iterable[tuple[str, str | None]]:
    """Yield the type and name of every resource that the options name."""
    kinds = {"TOPIC": "topics", "GROUP": "groups", "TRANSACTIONAL_ID": "transactional_ids",
             "DELEGATION_TOKEN": "tokens", "USER": "users"}  # fmt: skip
    for kind, option in kinds.items():
        yield from ((kind, name) for name in options[option])
    if options["cluster"]:
        yield "CLUSTER", CLUSTER_NAME


def _acls(options: Mapping[str, Any]) -> list[Acl]:
    """Return the ACLs that the options describe; without a principal those that a filter is made of."""
    named = [(kind, name or "") for kind, name in _named(options)]
    if not named:
        raise click.UsageError("name a resource: --topic, --group, --cluster, --transactional-id, ...")
    chosen = options["producer"] or options["consumer"]
    if chosen and options["operations"]:
        raise click.UsageError("--producer and --consumer say which operations: leave out --operation")
    if options["consumer"] and not (options["topics"] and options["groups"]):
        raise click.UsageError("--consumer needs --topic and --group")
    if options["producer"] and not options["topics"]:
        raise click.UsageError("--producer needs --topic")
    who = [(name, host, "ALLOW") for name, host in product(options["allowed"], options["allowed_hosts"])]
    who += [(name, host, "DENY") for name, host in product(options["denied"], options["denied_hosts"])]
    if chosen and options["producer"] and options["idempotent"]:
        named.append(("CLUSTER", CLUSTER_NAME))
    return [
        Acl(kind, name, "LITERAL" if kind == "CLUSTER" else options["pattern"].upper(), principal, host, operation,
            permission)
        for kind, name in named
        for operation in (_role_operations(kind, options) if chosen else options["operations"] or ["ALL"])
        for principal, host, permission in who or [("", "*", "ANY")]
    ]  # fmt: skip


def _role_operations(kind: str, options: Mapping[str, Any]) -> list[str]:
    """Return the operations that --producer and --consumer mean for a type of resource."""
    found: dict[str, None] = {}
    if options["producer"]:
        found |= dict.fromkeys(
            {"TOPIC": ["WRITE", "DESCRIBE", "CREATE"], "TRANSACTIONAL_ID": ["WRITE", "DESCRIBE"],
             "CLUSTER": ["IDEMPOTENT_WRITE"] if options["idempotent"] else []}.get(kind, [])
        )  # fmt: skip
    if options["consumer"]:
        found |= dict.fromkeys({"TOPIC": ["READ", "DESCRIBE"], "GROUP": ["READ"]}.get(kind, []))
    return list(found)


def _filter(acl: Acl, options: Mapping[str, Any]) -> AclFilter:
    """Return what selects an ACL; without a principal, those of everybody."""
    operations = options["operations"] or options["producer"] or options["consumer"]
    operation = acl.operation if operations or acl.principal else "ANY"
    if not acl.principal:
        return AclFilter(acl.resource, acl.name, acl.pattern, operation=operation)
    return AclFilter(*acl[:5], operation, acl.permission)


def _text(acl: Acl) -> str:
    return " ".join(acl._asdict()[name] for name in _COLUMNS)


def _show(found: Sequence[Acl]) -> None:
    print_records(_COLUMNS, [acl._asdict() for acl in found])
