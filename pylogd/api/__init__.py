"""The request handlers, one file per API, and their one registry.

Every handler is imported here, by name, which is what registers it. `HANDLERS` and `served_versions` are what a server
needs to dispatch; `unsupported_api_versions` is the answer to the one request that gets one at any version.
"""

from pylogd.api import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from pylogd.api.api_versions import unsupported_api_versions
from pylogd.api.registry import HANDLERS, REGISTRATIONS, served_versions

__all__ = [
    "HANDLERS",
    "REGISTRATIONS",
    "alter_configs",
    "api_versions",
    "create_partitions",
    "create_topics",
    "delete_records",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "describe_log_dirs",
    "describe_topic_partitions",
    "fetch",
    "find_coordinator",
    "incremental_alter_configs",
    "init_producer_id",
    "list_offsets",
    "metadata",
    "offset_for_leader_epoch",
    "produce",
    "served_versions",
    "unsupported_api_versions",
]
