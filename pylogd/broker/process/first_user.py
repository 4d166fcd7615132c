"""Give a user SCRAM credentials in the metadata store, before any broker runs.

A broker whose listeners all want authentication lets nobody in who could create the first user. So this process opens
the store as a broker does: the embedded one, which only one process can use, or ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogd.base.process.shell import process_reactor
from pylogd.broker.metadata.entity_configs import Entity
from pylogd.broker.metadata.service import Metadata, open_store
from pylogd.config import Settings
from pylogd.credentials.scram import SCRAM_MECHANISMS, encode_credential, make_credential


def write_user(settings: Settings, user: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
    """Store a user's credentials for these mechanisms of SCRAM. Runs the reactor. Raises StoreError."""
    credentials = {
        mechanism: encode_credential(make_credential(SCRAM_MECHANISMS[mechanism], password, iterations=iterations))
        for mechanism in mechanisms
    }
    reactor = process_reactor()
    failures: list[Failure] = []

    async def write() -> None:
        metadata = Metadata(settings, open_store(settings, reactor))
        await metadata.start()
        try:
            await metadata.entity_configs.alter(Entity(user=user), credentials)
        finally:
            await metadata.stop()

    def begin() -> None:
        Deferred.fromCoroutine(write()).addErrback(failures.append).addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(begin)
    reactor.run()
    if failures:
        failures[0].raiseException()
