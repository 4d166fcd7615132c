"""The paths of the nodes in a metadata store, which are those of Kafka's ZooKeeper tree, and the internal topics.

Brokers, consumers that coordinate through ZooKeeper, and tools read the same tree. What the nodes hold is elsewhere.
"""

from __future__ import annotations

from typing import Final

BROKERS: Final = "/brokers/ids"
CONSUMERS: Final = "/consumers"
TOPICS: Final = "/brokers/topics"
TOPIC_CONFIGS: Final = "/config/topics"
BROKER_CONFIGS: Final = "/config/brokers"
USER_CONFIGS: Final = "/config/users"
CLIENT_CONFIGS: Final = "/config/clients"
IP_CONFIGS: Final = "/config/ips"
GROUP_CONFIGS: Final = "/config/groups"
CLIENT_METRICS_CONFIGS: Final = "/config/client-metrics"
#: The child of BROKER_CONFIGS with the settings of all brokers.
ALL_BROKERS: Final = "<default>"
CLUSTER_ID: Final = "/cluster/id"
PRODUCER_IDS: Final = "/latest_producer_id_block"
CHANGES: Final = "/changes"
#: The parent of sequence nodes. Each has a note about one of the last writes; `/changes` has the note about the newest.
CHANGE_LOG: Final = "/changes/log"
#: The parent of the nodes of delegation tokens.
DELEGATION_TOKENS: Final = "/delegation_token/tokens"
#: Random bytes in base64, from which the salts of unknown users are made.
SCRAM_DECOY_SECRET: Final = "/scram_decoy_secret"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
#: The incarnations of brokers that a controller's last decisions took into account.
INCARNATIONS: Final = "/brokers/incarnations"
#: A persistent node for each broker, with the data directories in which it may have replicas. Each registration writes
#: it, and its version is the broker epoch.
BROKER_EPOCHS: Final = "/brokers/epochs"
#: Names the broker that registered last. Its version counts registrations.
REGISTRATIONS: Final = "/brokers/registrations"
#: Nodes that are created, without data, when a cluster is new.
PARENTS: Final = (
    BROKERS, TOPICS, TOPIC_CONFIGS, BROKER_CONFIGS, "/cluster", PRODUCER_IDS, CHANGE_LOG, CONTROLLER_EPOCH,
    INCARNATIONS, BROKER_EPOCHS, REGISTRATIONS, USER_CONFIGS, CLIENT_CONFIGS, IP_CONFIGS, GROUP_CONFIGS, CONSUMERS,
)  # fmt: skip

#: Topics in which brokers keep their own state. Clients may read them; Metadata answers mark them as internal.
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})


def topic_path(name: str) -> str:
    """Return the path of the node of a topic."""
    return f"{TOPICS}/{name}"
