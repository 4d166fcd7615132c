"""The administrator's client; `pylogd.client.core.admin.operations` has its operations."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.core.admin.operations import Operations
from pylogd.client.core.options import ClientOptions

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    operation: Callable[Concatenate[Operations, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Admin, P], T]:
    """Return an operation as a method that blocks until it is done."""

    @wraps(operation)
    def method(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.cluster.run(operation(self._operations, *args, **kwargs))

    return method


class Admin:
    """Administrative operations, on own connections unless a `Cluster` is given. Times are in seconds."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ClientOptions | None = None,
        *,
        retry_timeout: float = 60.0,
        **settings: Any,
    ) -> None:
        """Pass options as `ClientOptions`, by name, or both. No connection is opened yet."""
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, options, retry_timeout=retry_timeout, **settings
        )  # fmt: skip
        self._operations = Operations(self.cluster.evented, self.cluster.options.request_timeout)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if self._own_cluster:
            self.cluster.close()

    list_topics = _blocking(Operations.list_topics)
    describe_topic = _blocking(Operations.describe_topic)
    create_topic = _blocking(Operations.create_topic)
    create_topics = _blocking(Operations.create_topics)
    delete_topic = _blocking(Operations.delete_topic)
    delete_topics = _blocking(Operations.delete_topics)
    create_partitions = _blocking(Operations.create_partitions)
    describe_configs = _blocking(Operations.describe_configs)
    configs_by_broker = _blocking(Operations.configs_by_broker)
    alter_configs = _blocking(Operations.alter_configs)
    offsets = _blocking(Operations.offsets)
    log_ends = _blocking(Operations.log_ends)
    delete_records = _blocking(Operations.delete_records)
    describe_cluster = _blocking(Operations.describe_cluster)
    describe_log_dirs = _blocking(Operations.describe_log_dirs)
    log_dirs_by_broker = _blocking(Operations.log_dirs_by_broker)
    reopen_log_dir = _blocking(Operations.reopen_log_dir)
    elect_leaders = _blocking(Operations.elect_leaders)
    eligible_replicas = _blocking(Operations.eligible_replicas)
    describe_producers = _blocking(Operations.describe_producers)
    list_transactions = _blocking(Operations.list_transactions)
    describe_features = _blocking(Operations.describe_features)
    update_features = _blocking(Operations.update_features)
    describe_transaction = _blocking(Operations.describe_transaction)
    hanging_transactions = _blocking(Operations.hanging_transactions)
    abort_transaction = _blocking(Operations.abort_transaction)
    force_terminate_transaction = _blocking(Operations.force_terminate_transaction)
    reassign = _blocking(Operations.reassign)
    layout = _blocking(Operations.layout)
    begin_moves = _blocking(Operations.begin_moves)
    throttle = _blocking(Operations.throttle)
    unthrottle = _blocking(Operations.unthrottle)
    throttle_rate = _blocking(Operations.throttle_rate)
    cordon = _blocking(Operations.cordon)
    broker_labels = _blocking(Operations.broker_labels)
    topic_labels = _blocking(Operations.topic_labels)
    reassignments = _blocking(Operations.reassignments)
    list_groups = _blocking(Operations.list_groups)
    groups_by_broker = _blocking(Operations.groups_by_broker)
    group_totals = _blocking(Operations.group_totals)
    describe_group = _blocking(Operations.describe_group)
    describe_groups = _blocking(Operations.describe_groups)
    delete_group = _blocking(Operations.delete_group)
    delete_groups = _blocking(Operations.delete_groups)
    list_users = _blocking(Operations.list_users)
    set_password = _blocking(Operations.set_password)
    delete_credentials = _blocking(Operations.delete_credentials)
    group_offsets = _blocking(Operations.group_offsets)
    plan_group_offsets = _blocking(Operations.plan_group_offsets)
    alter_group_offsets = _blocking(Operations.alter_group_offsets)
    delete_group_offsets = _blocking(Operations.delete_group_offsets)
    list_acls = _blocking(Operations.list_acls)
    create_acls = _blocking(Operations.create_acls)
    delete_acls = _blocking(Operations.delete_acls)
    client_quotas = _blocking(Operations.client_quotas)
    alter_client_quotas = _blocking(Operations.alter_client_quotas)
