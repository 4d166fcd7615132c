"""The administrator's client on Twisted; `pylogd.client.core.admin.operations` has its operations."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from twisted.internet.defer import Deferred

from pylogd.client.core.admin.operations import Operations
from pylogd.client.core.options import ClientOptions
from pylogd.client.deferred.cluster import Cluster

P = ParamSpec("P")
T = TypeVar("T")


def _deferred(
    operation: Callable[Concatenate[Operations, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Admin, P], Deferred[T]]:
    """Return an operation as a method that returns a Deferred, which the caller may cancel."""

    @wraps(operation)
    def method(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        return Deferred.fromCoroutine(operation(self._operations, *args, **kwargs))

    return method


class Admin:
    """Administrative operations, on own connections unless a `Cluster` is given. Times are in seconds."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ClientOptions | None = None,
        *,
        retry_timeout: float = 60.0,
        reactor: Any = None,
        **settings: Any,
    ) -> None:
        """Pass options as `ClientOptions`, by name, or both. No connection is opened yet."""
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, options, retry_timeout=retry_timeout, reactor=reactor, **settings
        )  # fmt: skip
        self._operations = Operations(self.cluster, self.cluster.request_timeout)

    def close(self) -> None:
        """Close the connections."""
        if self._own_cluster:
            self.cluster.close()

    list_topics = _deferred(Operations.list_topics)
    describe_topic = _deferred(Operations.describe_topic)
    create_topic = _deferred(Operations.create_topic)
    create_topics = _deferred(Operations.create_topics)
    delete_topic = _deferred(Operations.delete_topic)
    delete_topics = _deferred(Operations.delete_topics)
    create_partitions = _deferred(Operations.create_partitions)
    describe_configs = _deferred(Operations.describe_configs)
    configs_by_broker = _deferred(Operations.configs_by_broker)
    alter_configs = _deferred(Operations.alter_configs)
    offsets = _deferred(Operations.offsets)
    log_ends = _deferred(Operations.log_ends)
    delete_records = _deferred(Operations.delete_records)
    describe_cluster = _deferred(Operations.describe_cluster)
    describe_log_dirs = _deferred(Operations.describe_log_dirs)
    log_dirs_by_broker = _deferred(Operations.log_dirs_by_broker)
    reopen_log_dir = _deferred(Operations.reopen_log_dir)
    elect_leaders = _deferred(Operations.elect_leaders)
    eligible_replicas = _deferred(Operations.eligible_replicas)
    describe_producers = _deferred(Operations.describe_producers)
    list_transactions = _deferred(Operations.list_transactions)
    describe_features = _deferred(Operations.describe_features)
    update_features = _deferred(Operations.update_features)
    describe_transaction = _deferred(Operations.describe_transaction)
    hanging_transactions = _deferred(Operations.hanging_transactions)
    abort_transaction = _deferred(Operations.abort_transaction)
    force_terminate_transaction = _deferred(Operations.force_terminate_transaction)
    reassign = _deferred(Operations.reassign)
    layout = _deferred(Operations.layout)
    begin_moves = _deferred(Operations.begin_moves)
    throttle = _deferred(Operations.throttle)
    unthrottle = _deferred(Operations.unthrottle)
    throttle_rate = _deferred(Operations.throttle_rate)
    cordon = _deferred(Operations.cordon)
    broker_labels = _deferred(Operations.broker_labels)
    topic_labels = _deferred(Operations.topic_labels)
    reassignments = _deferred(Operations.reassignments)
    list_groups = _deferred(Operations.list_groups)
    groups_by_broker = _deferred(Operations.groups_by_broker)
    group_totals = _deferred(Operations.group_totals)
    describe_group = _deferred(Operations.describe_group)
    describe_groups = _deferred(Operations.describe_groups)
    delete_group = _deferred(Operations.delete_group)
    delete_groups = _deferred(Operations.delete_groups)
    list_users = _deferred(Operations.list_users)
    set_password = _deferred(Operations.set_password)
    delete_credentials = _deferred(Operations.delete_credentials)
    group_offsets = _deferred(Operations.group_offsets)
    plan_group_offsets = _deferred(Operations.plan_group_offsets)
    alter_group_offsets = _deferred(Operations.alter_group_offsets)
    delete_group_offsets = _deferred(Operations.delete_group_offsets)
    list_acls = _deferred(Operations.list_acls)
    create_acls = _deferred(Operations.create_acls)
    delete_acls = _deferred(Operations.delete_acls)
    client_quotas = _deferred(Operations.client_quotas)
    alter_client_quotas = _deferred(Operations.alter_client_quotas)
