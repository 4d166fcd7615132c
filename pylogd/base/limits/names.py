"""The longest ids and names that clients may send, and the most things that they may name at a time.

The protocol itself bounds strings to 32,767 bytes, in compact form too (`wire.types.String`). Kafka has no other bound
for group ids and client ids. Each request of a group computes a hash over its id, so the bound here is lower: far
longer than any id that Kafka's clients, Connect, Streams or Spark make, and short enough to cost nothing.
"""

from __future__ import annotations

from typing import Final

#: The most characters of a group id. Longer ones get INVALID_GROUP_ID.
MAX_GROUP_ID: Final = 1024
#: The most characters of a transactional id. Longer ones get INVALID_REQUEST.
MAX_TRANSACTIONAL_ID: Final = 1024
#: The most characters of a group instance id, and of the names and types of assignment protocols. Kafka's broker has no
#: bound for these; its Java client allows 249 characters.
MAX_INSTANCE_ID: Final = 1024
#: The most characters of a consumer's rack. No broker has a longer rack, so a longer one is ignored.
MAX_RACK: Final = 249
#: How many characters of a client id are kept with a group's member, and become part of the member's id.
MAX_CLIENT_ID: Final = 255
#: The most characters of the name of a subscription to metrics of clients. It follows the rules of topic names.
MAX_SUBSCRIPTION_NAME: Final = 249
#: How many topics a member of the newer protocol may name: the coordinator handles all of them in one turn.
MAX_SUBSCRIPTIONS: Final = 10_000
#: The most partitions of one transaction. Each record of its state has all of them, and is written again when one is
#: added. More partitions get INVALID_REQUEST. Kafka's bound is the size of a record.
MAX_TRANSACTION_PARTITIONS: Final = 20_000
