"""The messages of the protocol, in one module for each API, and the table of all APIs.

Generated from protocol/apis/ by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple


class ApiKey(IntEnum):
    """The number of each API, with which requests begin."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class ApiInfo(NamedTuple):
    """An API: the name of its module and schema file, its versions, and the first flexible version."""

    key: int
    name: str
    module: str
    min_version: int
    max_version: int
    flexible_from: int


#: all APIs that have a schema, by key
APIS: Mapping[int, ApiInfo] = {
    0: ApiInfo(0, "Produce", "produce", 3, 13, 9),
    1: ApiInfo(1, "Fetch", "fetch", 4, 18, 12),
    2: ApiInfo(2, "ListOffsets", "list_offsets", 1, 11, 6),
    3: ApiInfo(3, "Metadata", "metadata", 0, 13, 9),
    8: ApiInfo(8, "OffsetCommit", "offset_commit", 2, 10, 8),
    9: ApiInfo(9, "OffsetFetch", "offset_fetch", 1, 10, 6),
    10: ApiInfo(10, "FindCoordinator", "find_coordinator", 0, 6, 3),
    11: ApiInfo(11, "JoinGroup", "join_group", 0, 9, 6),
    12: ApiInfo(12, "Heartbeat", "heartbeat", 0, 4, 4),
    13: ApiInfo(13, "LeaveGroup", "leave_group", 0, 5, 4),
    14: ApiInfo(14, "SyncGroup", "sync_group", 0, 5, 4),
    15: ApiInfo(15, "DescribeGroups", "describe_groups", 0, 6, 5),
    16: ApiInfo(16, "ListGroups", "list_groups", 0, 5, 3),
    17: ApiInfo(17, "SaslHandshake", "sasl_handshake", 0, 1, 2),
    18: ApiInfo(18, "ApiVersions", "api_versions", 0, 4, 3),
    19: ApiInfo(19, "CreateTopics", "create_topics", 0, 7, 5),
    20: ApiInfo(20, "DeleteTopics", "delete_topics", 0, 6, 4),
    21: ApiInfo(21, "DeleteRecords", "delete_records", 0, 2, 2),
    22: ApiInfo(22, "InitProducerId", "init_producer_id", 0, 5, 2),
    23: ApiInfo(23, "OffsetForLeaderEpoch", "offset_for_leader_epoch", 0, 4, 4),
    24: ApiInfo(24, "AddPartitionsToTxn", "add_partitions_to_txn", 0, 5, 3),
    25: ApiInfo(25, "AddOffsetsToTxn", "add_offsets_to_txn", 0, 4, 3),
    26: ApiInfo(26, "EndTxn", "end_txn", 0, 5, 3),
    27: ApiInfo(27, "WriteTxnMarkers", "write_txn_markers", 1, 2, 1),
    28: ApiInfo(28, "TxnOffsetCommit", "txn_offset_commit", 0, 5, 3),
    29: ApiInfo(29, "DescribeAcls", "describe_acls", 1, 3, 2),
    30: ApiInfo(30, "CreateAcls", "create_acls", 1, 3, 2),
    31: ApiInfo(31, "DeleteAcls", "delete_acls", 1, 3, 2),
    32: ApiInfo(32, "DescribeConfigs", "describe_configs", 0, 4, 4),
    33: ApiInfo(33, "AlterConfigs", "alter_configs", 0, 2, 2),
    34: ApiInfo(34, "AlterReplicaLogDirs", "alter_replica_log_dirs", 1, 2, 2),
    35: ApiInfo(35, "DescribeLogDirs", "describe_log_dirs", 0, 5, 2),
    36: ApiInfo(36, "SaslAuthenticate", "sasl_authenticate", 0, 2, 2),
    37: ApiInfo(37, "CreatePartitions", "create_partitions", 0, 3, 2),
    38: ApiInfo(38, "CreateDelegationToken", "create_delegation_token", 1, 3, 2),
    39: ApiInfo(39, "RenewDelegationToken", "renew_delegation_token", 1, 2, 2),
    40: ApiInfo(40, "ExpireDelegationToken", "expire_delegation_token", 1, 2, 2),
    41: ApiInfo(41, "DescribeDelegationToken", "describe_delegation_token", 1, 3, 2),
    42: ApiInfo(42, "DeleteGroups", "delete_groups", 0, 2, 2),
    43: ApiInfo(43, "ElectLeaders", "elect_leaders", 0, 2, 2),
    44: ApiInfo(44, "IncrementalAlterConfigs", "incremental_alter_configs", 0, 1, 1),
    45: ApiInfo(45, "AlterPartitionReassignments", "alter_partition_reassignments", 0, 1, 0),
    46: ApiInfo(46, "ListPartitionReassignments", "list_partition_reassignments", 0, 0, 0),
    47: ApiInfo(47, "OffsetDelete", "offset_delete", 0, 0, 1),
    48: ApiInfo(48, "DescribeClientQuotas", "describe_client_quotas", 0, 1, 1),
    49: ApiInfo(49, "AlterClientQuotas", "alter_client_quotas", 0, 1, 1),
    50: ApiInfo(50, "DescribeUserScramCredentials", "describe_user_scram_credentials", 0, 0, 0),
    51: ApiInfo(51, "AlterUserScramCredentials", "alter_user_scram_credentials", 0, 0, 0),
    57: ApiInfo(57, "UpdateFeatures", "update_features", 0, 2, 0),
    60: ApiInfo(60, "DescribeCluster", "describe_cluster", 0, 2, 0),
    61: ApiInfo(61, "DescribeProducers", "describe_producers", 0, 0, 0),
    65: ApiInfo(65, "DescribeTransactions", "describe_transactions", 0, 0, 0),
    66: ApiInfo(66, "ListTransactions", "list_transactions", 0, 2, 0),
    68: ApiInfo(68, "ConsumerGroupHeartbeat", "consumer_group_heartbeat", 0, 1, 0),
    69: ApiInfo(69, "ConsumerGroupDescribe", "consumer_group_describe", 0, 1, 0),
    71: ApiInfo(71, "GetTelemetrySubscriptions", "get_telemetry_subscriptions", 0, 0, 0),
    72: ApiInfo(72, "PushTelemetry", "push_telemetry", 0, 0, 0),
    74: ApiInfo(74, "ListConfigResources", "list_config_resources", 0, 1, 0),
    75: ApiInfo(75, "DescribeTopicPartitions", "describe_topic_partitions", 0, 0, 0),
}
