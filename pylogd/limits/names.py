"""The longest ids and names that clients may send.

The protocol itself bounds strings to 32,767 bytes, in compact form too (`wire.types.String`). Kafka has no other bound
for group ids and client ids. Each request of a group computes a hash over its id, so the bound here is lower: far
longer than any id that Kafka's clients, Connect, Streams or Spark make, and short enough to cost nothing.
"""

from __future__ import annotations

from typing import Final

#: Group ids, in characters. Longer ones are answered INVALID_GROUP_ID.
MAX_GROUP_ID: Final = 1024
#: Transactional ids, in characters. Longer ones are answered INVALID_REQUEST.
MAX_TRANSACTIONAL_ID: Final = 1024
#: Group instance ids, and the names and types of assignment protocols. Kafka's broker has no bound for these either;
#: its Java client allows 249 characters.
MAX_INSTANCE_ID: Final = 1024
#: Racks of consumers. No broker has a longer one, so it is ignored.
MAX_RACK: Final = 249
#: How many characters of a client id are kept with a group's member, and become part of its id.
MAX_CLIENT_ID: Final = 255
#: Names of subscriptions to metrics of clients: they follow the rules of topic names.
MAX_SUBSCRIPTION_NAME: Final = 249
#: How many topics a member of the newer protocol may name: the coordinator handles all of them in one turn.
MAX_SUBSCRIPTIONS: Final = 10_000
