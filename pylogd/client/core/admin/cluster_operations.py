"""The administrator's operations on the cluster, its brokers and their disks, for all faces (see `operations`)."""

from __future__ import annotations

from collections.abc import Iterable

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.client.core.admin.calls import Calls, ask, ask_any, question, refresh
from pylogd.client.core.metadata import check
from pylogd.client.core.model import Broker, ClusterDescription, LogDir, TopicPartition
from pylogd.wire.messages import alter_replica_log_dirs as alter_dirs
from pylogd.wire.messages import describe_cluster as describe_cluster_messages
from pylogd.wire.messages import describe_log_dirs as log_dirs


class ClusterOperations:
    """Operations on brokers and their data directories."""

    _calls: Calls

    async def describe_cluster(self, timeout: float | None = None) -> ClusterDescription:
        """Return the cluster's id, its controller and its brokers.

        timeout: seconds after which another broker is asked; None to wait for one for the client's `request_timeout`.
        """
        response: describe_cluster_messages.DescribeClusterResponse = await ask_any(
            self._calls, describe_cluster_messages.DescribeClusterRequest(), timeout
        )
        check(response.error_code, response.error_message)
        brokers = tuple(
            Broker(
                b.broker_id, b.host, b.port, b.rack, b.host_id, tuple(b.labels), b.is_cordoned, b.has_full_volume,
                None if b.partition_room < 0 else b.partition_room,
            )
            for b in response.brokers
        )  # fmt: skip
        return ClusterDescription(response.cluster_id, response.controller_id, brokers)

    async def describe_log_dirs(self, brokers: Iterable[int] | None = None) -> list[LogDir]:
        """Return the data directories of some brokers, or of all, with the size of each partition in them.

        The brokers are asked at the same time. Brokers that fail are asked again. Raises the error of a broker that
        does not answer.
        """
        if brokers is None:
            await self._calls.call(lambda: refresh(self._calls))
        nodes = sorted(self._calls.metadata.brokers) if brokers is None else list(brokers)
        found: dict[int, list[LogDir]] = {}

        async def attempt() -> None:
            failed = None
            for node, answer in (await self.log_dirs_by_broker([one for one in nodes if one not in found])).items():
                if isinstance(answer, PylogdError):
                    failed = answer
                else:
                    found[node] = answer
            if failed is not None:
                raise failed

        await self._calls.call(attempt)
        return [one for node in nodes for one in found[node]]

    async def log_dirs_by_broker(
        self, brokers: Iterable[int], timeout: float | None = None
    ) -> dict[int, list[LogDir] | PylogdError]:
        """Return the data directories of each broker, or its error if it does not answer within `timeout` seconds.

        All brokers are asked at the same time, without retries. Raises the error if the brokers' addresses can't be
        found.
        """
        nodes = list(brokers)
        if not self._calls.metadata.brokers:
            await self._calls.call(lambda: refresh(self._calls))
        request = log_dirs.DescribeLogDirsRequest(topics=None)
        answers = await self._calls.send_all([question(request, node) for node in nodes], timeout)
        return {node: _log_dirs(node, answer) for node, answer in zip(nodes, answers, strict=True)}

    async def reopen_log_dir(self, broker: int, path: str) -> LogDir:
        """Tell a broker to use a data directory again that was offline or full.

        Return the directory as it is afterwards; its `error` is None if it is in use. Raises KafkaError
        (LOG_DIR_NOT_FOUND) if the broker does not have this directory.
        """
        request = alter_dirs.AlterReplicaLogDirsRequest([alter_dirs.AlterReplicaLogDir(path)])
        await ask(self._calls, request, broker)
        for found in await self.describe_log_dirs([broker]):
            if found.path == path:
                return found
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"broker {broker} has no data directory {path}")


def _log_dirs(node: int, answer: log_dirs.DescribeLogDirsResponse | PylogdError) -> list[LogDir] | PylogdError:
    """Return a broker's data directories, or the error."""
    if isinstance(answer, PylogdError):
        return answer
    if answer.error_code:
        return KafkaError(error_for(answer.error_code))
    found = []
    for one in answer.results:
        sizes = {
            TopicPartition(topic.name, partition.partition_index): partition.partition_size
            for topic in one.topics
            for partition in topic.partitions
        }
        error = error_for(one.error_code).name if one.error_code else None
        found.append(LogDir(node, one.log_dir, error, one.total_bytes, one.usable_bytes, sizes, one.is_cordoned))
    return found
