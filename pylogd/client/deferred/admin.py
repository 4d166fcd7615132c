"""The administrator's client on Twisted; `pylogd.client.core.admin.operations` has its operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylogd.client.core.admin.operations import Operations
from pylogd.client.core.options import ClientOptions
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.tasks import deferred


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
        self._methods = Operations(self.cluster, self.cluster.request_timeout)

    def close(self) -> None:
        """Close the connections."""
        if self._own_cluster:
            self.cluster.close()

    list_topics = deferred(Operations.list_topics)
    describe_topic = deferred(Operations.describe_topic)
    create_topic = deferred(Operations.create_topic)
    create_topics = deferred(Operations.create_topics)
    delete_topic = deferred(Operations.delete_topic)
    delete_topics = deferred(Operations.delete_topics)
    create_partitions = deferred(Operations.create_partitions)
    describe_configs = deferred(Operations.describe_configs)
    configs_by_broker = deferred(Operations.configs_by_broker)
    alter_configs = deferred(Operations.alter_configs)
    offsets = deferred(Operations.offsets)
    log_ends = deferred(Operations.log_ends)
    delete_records = deferred(Operations.delete_records)
    describe_cluster = deferred(Operations.describe_cluster)
    describe_log_dirs = deferred(Operations.describe_log_dirs)
    log_dirs_by_broker = deferred(Operations.log_dirs_by_broker)
    reopen_log_dir = deferred(Operations.reopen_log_dir)
    elect_leaders = deferred(Operations.elect_leaders)
    eligible_replicas = deferred(Operations.eligible_replicas)
    describe_producers = deferred(Operations.describe_producers)
    list_transactions = deferred(Operations.list_transactions)
    describe_features = deferred(Operations.describe_features)
    update_features = deferred(Operations.update_features)
    describe_transaction = deferred(Operations.describe_transaction)
    hanging_transactions = deferred(Operations.hanging_transactions)
    abort_transaction = deferred(Operations.abort_transaction)
    force_terminate_transaction = deferred(Operations.force_terminate_transaction)
    reassign = deferred(Operations.reassign)
    layout = deferred(Operations.layout)
    begin_moves = deferred(Operations.begin_moves)
    throttle = deferred(Operations.throttle)
    unthrottle = deferred(Operations.unthrottle)
    throttle_rate = deferred(Operations.throttle_rate)
    cordon = deferred(Operations.cordon)
    broker_labels = deferred(Operations.broker_labels)
    topic_labels = deferred(Operations.topic_labels)
    reassignments = deferred(Operations.reassignments)
    list_groups = deferred(Operations.list_groups)
    groups_by_broker = deferred(Operations.groups_by_broker)
    group_totals = deferred(Operations.group_totals)
    describe_group = deferred(Operations.describe_group)
    describe_groups = deferred(Operations.describe_groups)
    delete_group = deferred(Operations.delete_group)
    delete_groups = deferred(Operations.delete_groups)
    list_users = deferred(Operations.list_users)
    set_password = deferred(Operations.set_password)
    delete_credentials = deferred(Operations.delete_credentials)
    group_offsets = deferred(Operations.group_offsets)
    plan_group_offsets = deferred(Operations.plan_group_offsets)
    alter_group_offsets = deferred(Operations.alter_group_offsets)
    delete_group_offsets = deferred(Operations.delete_group_offsets)
    list_acls = deferred(Operations.list_acls)
    create_acls = deferred(Operations.create_acls)
    delete_acls = deferred(Operations.delete_acls)
    client_quotas = deferred(Operations.client_quotas)
    alter_client_quotas = deferred(Operations.alter_client_quotas)
