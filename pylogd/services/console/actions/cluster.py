"""Actions on the cluster: move replicas, throttle and cancel moves, set quotas, users and ACLs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from pylogd.base.errors import KafkaError
from pylogd.base.placement.errors import PlacementImpossible
from pylogd.base.placement.moves import spread
from pylogd.client.core.admin.access_operations import (
    CLUSTER_NAME,
    DEFAULT_ENTITY,
    OPERATIONS,
    RESOURCES,
    Acl,
    AclFilter,
    QuotaEntity,
)
from pylogd.client.core.admin.move_operations import RATES, THROTTLED
from pylogd.client.core.model import TopicPartition
from pylogd.credentials.scram import SCRAM_MECHANISMS
from pylogd.services.console.actions.steps import Action, Field, Plan, command, number
from pylogd.services.console.answers import PageRequest, Refused
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.pages.administration import entity_text
from pylogd.services.console.pages.topics import find_topic
from pylogd.services.console.roles import Role

_QUOTAS: Final = (
    "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
    "connection_creation_rate",
)  # fmt: skip


class OnCluster(Action):
    """The section that these actions share."""

    section = "admin"


class MoveReplicas(OnCluster):
    """Move the replicas of a topic to other brokers."""

    path, name, heading, after = "/reassign", "move replicas", "Move a topic's replicas", "/reassignments"

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        brokers = ", ".join(map(str, cluster.sampler.last.brokers))
        return [
            Field("topic", "Topic", required=True),
            Field("brokers", "Brokers", value=brokers, required=True, hint="the ids of those that may have replicas"),
            Field("throttle", "Throttle", "number", hint="bytes a second that each broker may copy; empty: none"),
        ]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the fewest moves after which the chosen brokers have about as many replicas each.

        Raises Refused, PylogdError.
        """
        topic = find_topic(cluster, asked.form.get("topic", "").strip())
        nodes = [int(word) for word in asked.form.get("brokers", "").split(",") if word.strip().isdecimal()]
        throttled = asked.form.get("throttle", "").strip()
        rate = number(asked.form, "throttle", 1, 2**62) if throttled else None
        layout = await cluster.admin.layout([topic.name])
        if not nodes or any(node not in layout.brokers.live for node in nodes):
            raise Refused(422, "Write ids of live brokers, with commas between.")
        try:
            planned = await cluster.in_thread(partial(spread, layout, chosen=nodes))
        except PlacementImpossible as error:
            raise Refused(422, str(error)) from None
        now = layout.current
        changes = {place: replicas for place, replicas in planned.items() if replicas != now[place]}

        async def run() -> str:
            if changes:
                await cluster.admin.begin_moves(changes, throttle=rate)
            return f"{len(changes)} partitions of {topic.name} begin to move."

        rows = [(str(place), _text(now[place]), _text(replicas)) for place, replicas in sorted(changes.items())]
        words: list[object] = ["reassign", "execute", "-"]
        words += ["--throttle", rate] if rate is not None else []
        line = f"echo {shlex.quote(_document(changes))} | {command(cluster, *words)}"
        warnings = [f"Broker {node} is cordoned, and gets no more replicas." for node in layout.brokers.cordoned]
        warnings += [] if rate is not None or not changes else ["Without a throttle, copying may slow down clients."]
        return Plan(
            line, run, ("Partition", "Now", "Then"), rows, " ".join(warnings),
            f"{len(changes)} partitions of {topic.name}",
        )  # fmt: skip


class Throttle(OnCluster):
    """Change the rate at which replicas that are not in sync are copied."""

    path, name, heading, after = "/throttle", "throttle moves", "Throttle moves", "/reassignments"

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        return [Field("rate", "Bytes a second", "number", hint="for each broker; empty removes the throttle")]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the changes: the rate of each broker, and the throttled topics, whose replicas move."""
        rate = number(asked.form, "rate", 1, 2**62) if asked.form.get("rate", "").strip() else None
        topics = sorted({place.topic for place in await cluster.admin.reassignments()})

        async def run() -> str:
            if rate is None:
                await cluster.admin.unthrottle(topics)
                return "The throttle was removed."
            await cluster.admin.throttle(topics, rate)
            return f"Each broker copies at most {rate:,} bytes a second."

        rows = [(topic, "none" if rate is None else f"{rate:,}") for topic in topics]
        return Plan(_throttle_lines(cluster, rate, topics), run, ("Moving topic", "Bytes a second and broker"), rows)


class CancelMoves(OnCluster):
    """Cancel all reassignments, and remove their throttle."""

    path, name, heading, after = "/cancel-moves", "cancel moves", "Cancel all moves", "/reassignments"

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return no fields: the form has only a button."""
        return []

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the moves to cancel, each with the former replicas of the partition."""
        moves = await cluster.admin.reassignments()

        async def run() -> str:
            outcome = await cluster.admin.reassign(dict.fromkeys(moves)) if moves else {}
            _raise(outcome.values())
            await cluster.admin.unthrottle({place.topic for place in moves})
            return f"{len(moves)} moves were cancelled."

        rows = [
            (str(place), _text(move.replicas), _text(node for node in move.replicas if node not in move.adding))
            for place, move in sorted(moves.items())
        ]
        line = command(cluster, "reassign", "cancel")
        return Plan(line, run, ("Partition", "Now", "Then"), rows, "What was copied is deleted.")


class SetQuota(OnCluster):
    """Set or remove a quota."""

    path, name, heading, after = "/set-quota", "set quota", "Set a quota", "/quotas"
    role = Role.ADMIN

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        hint = "(default) for each that has none of its own; empty: for whichever"
        return [
            Field("user", "User", hint=hint), Field("client_id", "Client id", hint=hint),
            Field("ip", "IP address", hint="for connection_creation_rate only"),
            Field("quota", "Quota", "choice", choices=_QUOTAS),
            Field("value", "Value", hint="empty removes the quota"),
        ]  # fmt: skip

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the quota before and after. The cluster has checked the new one. Raises Refused, PylogdError."""
        form = asked.form
        entity = QuotaEntity(*(_entity(form.get(part, "")) for part in ("user", "client_id", "ip")))
        quota = form.get("quota", "")
        if not any(part is not None for part in entity) or quota not in _QUOTAS:
            raise Refused(422, "Write whose quota it is, and choose a quota.")
        try:
            value = float(form["value"]) if form.get("value", "").strip() else None
        except ValueError:
            raise Refused(422, "The value is a number.") from None
        now = (await cluster.admin.client_quotas(entity, strict=True)).get(entity, {}).get(quota)
        await cluster.admin.alter_client_quotas(entity, {quota: value}, validate_only=True)

        async def run() -> str:
            await cluster.admin.alter_client_quotas(entity, {quota: value})
            return f"The quota of {entity_text(entity)} was {'removed' if value is None else 'set'}."

        words: list[object] = ["quotas", "remove" if value is None else "set"]
        for option, part in zip(("--user", "--client-id", "--ip"), entity, strict=True):
            if part is not None:
                words += [f"{option}-default"] if part == DEFAULT_ENTITY else [option, part]
        words += [f"--{quota.replace('_', '-')}"] + ([] if value is None else [f"{value:.17g}"])
        rows = [(entity_text(entity), quota, _value(now), _value(value))]
        return Plan(command(cluster, *words), run, ("Of", "Quota", "Now", "Then"), rows)


def _entity(text: str) -> str | None:
    return {"": None, "(default)": DEFAULT_ENTITY}.get(text.strip(), text.strip())


def _value(value: float | None) -> str:
    return "none" if value is None else f"{value:,.10g}"


class RemoveUser(OnCluster):
    """Remove a user's credentials."""

    path, name, heading, after = "/remove-user", "remove user", "Remove a user", "/users"
    role = Role.ADMIN

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        return [Field("user", "User", required=True)]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the credentials that the user loses. Raises Refused if there are none."""
        user = asked.form.get("user", "").strip()
        found = await cluster.admin.list_users([user]) if user else []
        if not found:
            raise Refused(422, "There is no such user.")

        async def run() -> str:
            _raise((await cluster.admin.delete_credentials(found)).values())
            return f"The user {user} was removed."

        rows = [(one.user, one.mechanism) for one in found]
        return Plan(command(cluster, "users", "remove", user, "--yes"), run, ("User", "Credential"), rows,
                    "The user can't log in any more.")  # fmt: skip


class AddAcl(OnCluster):
    """Add an access control list."""

    path, name, heading, after = "/add-acl", "add ACL", "Add an ACL", "/acls"
    role = Role.ADMIN

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        return [
            Field("principal", "Principal", value="User:", required=True),
            Field("permission", "Permission", "choice", choices=("ALLOW", "DENY")),
            Field("operation", "Operation", "choice", choices=[one for one in OPERATIONS if one != "ANY"]),
            Field("resource", "Resource", "choice", choices=[one for one in RESOURCES if one != "ANY"]),
            Field("name", "Name", hint="* for all; of the cluster, leave it empty"),
            Field("pattern", "Pattern", "choice", choices=("LITERAL", "PREFIXED")),
            Field("host", "Host", value="*", required=True),
        ]  # fmt: skip

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the access control list that is added. Raises Refused."""
        acl = _acl(asked.form)

        async def run() -> str:
            _raise((await cluster.admin.create_acls([acl])).values())
            return "The ACL was added."

        way = acl.permission.lower()
        words: list[object] = ["acls", "add", f"--{way}-principal", acl.principal, "--operation", acl.operation]
        words += [*_resource(acl), f"--{way}-host", acl.host, "--resource-pattern-type", acl.pattern.lower()]
        return Plan(command(cluster, *words), run, Acl._fields, [acl])


class RemoveAcl(OnCluster):
    """Remove access control lists."""

    path, name, heading, after = "/remove-acl", "remove ACLs", "Remove ACLs", "/acls"
    role = Role.ADMIN

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        return [
            Field("principal", "Principal", hint="User:NAME; empty: whoever"),
            Field("resource", "Resource", "choice", choices=list(RESOURCES)),
            Field("name", "Name", hint="empty: whichever"),
        ]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the access control lists that match the entered values. Raises Refused."""
        principal, name = (asked.form.get(part, "").strip() or None for part in ("principal", "name"))
        resource = asked.form.get("resource", "ANY")
        if resource not in RESOURCES or (principal is None and name is None):
            raise Refused(422, "Write a principal or a name.")
        wanted = AclFilter(resource=resource, name=name, principal=principal)
        found = sorted(await cluster.admin.list_acls(wanted))

        async def run() -> str:
            deleted = await cluster.admin.delete_acls([AclFilter(*one) for one in found]) if found else []
            return f"{len(deleted)} ACLs were removed."

        lines = []
        for one in found:
            way = one.permission.lower()
            lines.append(command(cluster, "acls", "remove", f"--{way}-principal", one.principal, "--operation",
                                 one.operation, *_resource(one), "--resource-pattern-type", one.pattern.lower(),
                                 "--yes"))  # fmt: skip
        return Plan("\n".join(lines), run, Acl._fields, found, "Clients may lose their access, or get it.")


def _acl(form: Mapping[str, str]) -> Acl:
    """Return the ACL of a form. Raises Refused."""
    resource = form.get("resource", "")
    name = CLUSTER_NAME if resource == "CLUSTER" else form.get("name", "").strip()
    acl = Acl(
        resource, name, form.get("pattern", ""), form.get("principal", "").strip(), form.get("host", "").strip(),
        form.get("operation", ""), form.get("permission", ""),
    )  # fmt: skip
    if not all(acl) or ":" not in acl.principal or resource not in RESOURCES or acl.operation not in OPERATIONS:
        raise Refused(422, "Fill in all fields; principals are like User:alice.")
    if acl.pattern not in ("LITERAL", "PREFIXED") or acl.permission not in ("ALLOW", "DENY"):
        raise Refused(422, "Choose a pattern and a permission.")
    return acl


def _resource(acl: Acl) -> list[str]:
    if acl.resource == "CLUSTER":
        return ["--cluster"]
    option = {"USER": "--user-principal"}.get(acl.resource, "--" + acl.resource.lower().replace("_", "-"))
    return [option, acl.name]


def _throttle_lines(cluster: WatchedCluster, rate: int | None, topics: Sequence[str]) -> str:
    """Return commands of Kafka's tools, which pylogd's brokers support too: `pylogd` throttles only new moves."""
    server = ["kafka-configs.sh", "--bootstrap-server", cluster.options.bootstrap, "--alter"]
    lines = []
    for node in cluster.sampler.last.brokers:
        change = ["--delete-config", ",".join(RATES)] if rate is None else [
            "--add-config", ",".join(f"{name}={rate}" for name in RATES)]  # fmt: skip
        lines.append(shlex.join([*server, "--entity-type", "brokers", "--entity-name", str(node), *change]))
    for topic in topics:
        change = ["--delete-config", ",".join(THROTTLED)] if rate is None else [
            "--add-config", ",".join(f"{name}=*" for name in THROTTLED)]  # fmt: skip
        lines.append(shlex.join([*server, "--entity-type", "topics", "--entity-name", topic, *change]))
    return "\n".join(lines)


def _document(targets: Mapping[TopicPartition, Sequence[int]]) -> str:
    """Return a plan in the format of Kafka's tool."""
    rows = [
        {"topic": place.topic, "partition": place.partition, "replicas": list(nodes)}
        for place, nodes in sorted(targets.items())
    ]
    return json.dumps({"version": 1, "partitions": rows})


def _text(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))


def _raise(outcomes: Iterable[KafkaError | None]) -> None:
    for error in outcomes:
        if error is not None:
            raise error


_BOTH: Final = "both"
_FEWEST: Final = 8  # the fewest characters of a password


class SetUser(OnCluster):
    """Add a user, or change a password. No page, command or log has the password."""

    path, name, heading, after = "/set-user", "set user", "Add a user or change a password", "/users"
    secret = True
    role = Role.ADMIN

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        return [
            Field("user", "User", required=True),
            Field("password", "Password", "password", required=True, hint=f"at least {_FEWEST} characters"),
            Field("mechanism", "Mechanism", "choice", choices=[_BOTH, *SCRAM_MECHANISMS]),
        ]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the plan, without the password. Raises Refused."""
        user, password = asked.form.get("user", "").strip(), asked.form.get("password", "")
        chosen = asked.form.get("mechanism", _BOTH)
        if not user or len(password) < _FEWEST:
            raise Refused(422, f"Write a user, and a password of at least {_FEWEST} characters.")
        if chosen != _BOTH and chosen not in SCRAM_MECHANISMS:
            raise Refused(422, "Choose a mechanism.")
        mechanisms = list(SCRAM_MECHANISMS) if chosen == _BOTH else [chosen]

        async def run() -> str:
            await cluster.admin.set_password(user, password, mechanisms)
            return f"The user {user} has the password for {' and '.join(mechanisms)}."

        words: list[object] = ["users", "add", user]
        words += [] if chosen == _BOTH else ["--mechanism", chosen]
        line = f"read -rs PASSWORD; printf '%s\\n' \"$PASSWORD\" | {command(cluster, *words)}"
        return Plan(line, run, logged=shlex.join(["user", user, *mechanisms]))
