"""A broker for the client's tests: a real socket, logs in memory, and misbehaviour on cue.

It serves the usual requests from a dict of batches. `on(api_key, act, ...)` queues other reactions to the next requests
of an API: a function from the request to a response, or one of `close`, `garbage`, `silence`, `cut`. All requests are
kept in `seen`.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, cast

from pylogd.base.errors import ErrorCode
from pylogd.broker.log.errors import InvalidProducerEpoch, OutOfOrderSequence
from pylogd.broker.log.producers import Producers
from pylogd.wire.messages import APIS, ApiKey, api_versions, fetch, init_producer_id, list_offsets, metadata, produce
from pylogd.wire.records import HEADER, BatchHeader, Record, decode_batch, iter_batches, parse_header
from pylogd.wire.session import RequestReceived, ServerSession
from pylogd.wire.values import ZERO_UUID

TOPIC_ID = bytes(range(16))
Act = Callable[[Any], Any]


class Misbehaviour:
    """Something other than a response."""

    def __init__(self, name: str) -> None:
        self.name = name


close = Misbehaviour("close")  # the connection, without an answer
garbage = Misbehaviour("garbage")  # bytes that are not a response
cut = Misbehaviour("cut")  # the first half of the response, then close
silence = Misbehaviour("silence")  # no answer, ever


def refuse_produce(code: ErrorCode) -> Act:
    """Answer a Produce with this for every partition."""

    def act(request: produce.ProduceRequest) -> produce.ProduceResponse:
        refused = [
            produce.TopicProduceResponse(
                topic.name,
                topic.topic_id,
                [produce.PartitionProduceResponse(p.index, code, -1) for p in topic.partition_data],
            )
            for topic in request.topic_data
        ]
        return produce.ProduceResponse(refused)

    return act


def refuse_fetch(code: ErrorCode) -> Act:
    """Answer a Fetch with this for every partition."""

    def act(request: fetch.FetchRequest) -> fetch.FetchResponse:
        refused = [
            fetch.FetchableTopicResponse(
                topic.topic, topic.topic_id, [fetch.PartitionData(p.partition, code) for p in topic.partitions]
            )
            for topic in request.topics
        ]
        return fetch.FetchResponse(responses=refused)

    return act


class FakeBroker:
    """One broker of one topic. Use as a context manager; `address` is where it listens."""

    def __init__(self, topic: str = "t", partitions: int = 1, versions: dict[int, tuple[int, int]] | None = None):
        self.topic = topic
        self.topic_id = TOPIC_ID
        self.versions = versions or {key: (api.min_version, api.max_version) for key, api in APIS.items()}
        self.logs: list[list[bytes]] = [[] for _ in range(partitions)]
        self.ends = [0] * partitions
        self.starts = [0] * partitions
        self.producers = [Producers() for _ in range(partitions)]  # assigned by the broker to idempotent producers
        self.producer_ids = 0
        self.seen: list[tuple[int, Any]] = []
        self._came = threading.Condition()
        self.connections = 0
        self._cues: dict[int, deque[Act | Misbehaviour]] = defaultdict(deque)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.host, self.port = self._listener.getsockname()
        self.leader_of = dict.fromkeys(range(partitions), 1)
        self._threads: list[threading.Thread] = []

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __enter__(self) -> FakeBroker:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join(10)

    def add_partition(self) -> None:
        """Let the topic have one more partition."""
        self.leader_of[len(self.logs)] = 1
        self.ends.append(0)
        self.starts.append(0)
        self.producers.append(Producers())
        self.logs.append([])

    def drop(self) -> None:
        """Cut every connection."""
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def on(self, api_key: int, *acts: Act | Misbehaviour) -> None:
        """What to do with the next requests of an API, one each."""
        self._cues[api_key].extend(acts)

    def asked(self, api_key: int) -> list[Any]:
        """The requests of an API that came, in order."""
        return [request for key, request in self.seen if key == api_key]

    def wait_until_asked(self, api_key: int, count: int = 1, seconds: float = 60.0) -> list[Any]:
        """As `asked`, once there are `count`: what has no reply may reach its thread a moment after the call."""
        self.wait_until(lambda: len(self.asked(api_key)) >= count, seconds)
        return self.asked(api_key)

    def wait_until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Return once it holds; it is looked at when a request comes, heartbeats among them."""
        with self._came:
            assert self._came.wait_for(condition, seconds), "it did not come about"

    # The server

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(sock)
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        session = ServerSession(1 << 27, self.versions)
        with sock:
            while True:
                try:
                    data = sock.recv(1 << 16)
                except OSError:
                    return
                if not data:
                    return
                session.receive_data(data)
                while (event := session.next_event()) is not None:
                    try:
                        if not self._answer(sock, session, event):
                            return
                    except OSError:  # the client disconnected
                        return

    def _answer(self, sock: socket.socket, session: ServerSession, event: Any) -> bool:
        """Whether the connection goes on."""
        if not isinstance(event, RequestReceived):
            assert event.api_key == ApiKey.API_VERSIONS, f"API {event.api_key} v{event.version} is not served"
            event = RequestReceived(event.api_key, 0, event.correlation_id, event.client_id, None)
            refused = self._api_versions(None)
            refused.error_code = ErrorCode.UNSUPPORTED_VERSION
            sock.sendall(b"".join(cast("list[bytes]", session.encode_reply(event, refused))))
            return True
        with self._came:
            self.seen.append((event.api_key, event.request))
            self._came.notify_all()
        cues = self._cues[event.api_key]
        act = cues.popleft() if cues else getattr(self, "_" + APIS[event.api_key].module)
        if act is silence:
            return True
        if act is close:
            return False
        if act is garbage:
            sock.sendall(struct.pack(">ii", 12, event.correlation_id) + b"\xff" * 8)
            return True
        usual = getattr(self, "_" + APIS[event.api_key].module, None)
        behaves = usual if isinstance(act, Misbehaviour) and usual else cast("Callable[[Any], Any]", act)
        response = behaves(event.request)
        if response is None:
            return True
        frame = b"".join(cast("list[bytes]", session.encode_reply(event, response)))
        sock.sendall(frame[: len(frame) // 2] if act is cut else frame)
        return act is not cut

    # Default responses

    def _api_versions(self, _request: Any) -> api_versions.ApiVersionsResponse:
        keys = [api_versions.ApiVersion(key, low, high) for key, (low, high) in self.versions.items()]
        return api_versions.ApiVersionsResponse(api_keys=keys)

    def _metadata(self, request: metadata.MetadataRequest) -> metadata.MetadataResponse:
        by_id = {self.topic_id: self.topic}
        names = [self.topic] if request.topics is None else [t.name or by_id.get(t.topic_id) for t in request.topics]
        partitions = [
            metadata.MetadataResponsePartition(0, index, leader, 0, [1], [1])
            for index, leader in self.leader_of.items()
        ]
        topics = [
            metadata.MetadataResponseTopic(0, name, self.topic_id, False, partitions)
            if name == self.topic
            else metadata.MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
            for name in names
        ]
        brokers = [metadata.MetadataResponseBroker(1, self.host, self.port)]
        return metadata.MetadataResponse(brokers=brokers, cluster_id="fake", controller_id=1, topics=topics)

    def _produce(self, request: produce.ProduceRequest) -> produce.ProduceResponse | None:
        response = produce.ProduceResponse()
        for topic in request.topic_data:
            answers = []
            for data in topic.partition_data:
                answer = produce.PartitionProduceResponse(data.index, 0, -1)
                try:
                    answer.base_offset = self.append(data.index, bytes(data.records or b""))
                except OutOfOrderSequence:
                    answer.error_code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                except InvalidProducerEpoch:
                    answer.error_code = ErrorCode.INVALID_PRODUCER_EPOCH
                answers.append(answer)
            response.responses.append(produce.TopicProduceResponse(topic.name, topic.topic_id, answers))
        return response if request.acks else None

    def append(self, partition: int, batch: bytes) -> int:
        """Take a batch into a partition's log; the offset that it got, or that it has already."""
        base = self.ends[partition]
        header = parse_header(batch)
        if header.producer_id >= 0:
            known = self.producers[partition].check(
                header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset_delta
            )
            if known is not None:
                return known.base_offset
            self.producers[partition].note(header._replace(base_offset=base))
        self.logs[partition].append(struct.pack(">q", base) + batch[8:])
        self.ends[partition] += header.last_offset_delta + 1
        return base

    def stored(self, partition: int = 0) -> list[Record]:
        """All records of a partition."""
        return [record for batch in self.logs[partition] for record in decode_batch(batch)]

    def _init_producer_id(self, _request: Any) -> init_producer_id.InitProducerIdResponse:
        self.producer_ids += 1
        return init_producer_id.InitProducerIdResponse(producer_id=self.producer_ids)

    def _fetch(self, request: fetch.FetchRequest) -> fetch.FetchResponse:
        response = fetch.FetchResponse()
        space = request.max_bytes
        for topic in request.topics:
            answers = []
            if topic.topic_id not in (ZERO_UUID, self.topic_id):
                answers = [fetch.PartitionData(p.partition, ErrorCode.UNKNOWN_TOPIC_ID) for p in topic.partitions]
                response.responses.append(fetch.FetchableTopicResponse("", topic.topic_id, answers))
                continue
            for asked in topic.partitions:
                answer = self._read(asked, min(space, asked.partition_max_bytes))
                space -= len(answer.records or b"")
                answers.append(answer)
            response.responses.append(fetch.FetchableTopicResponse(topic.topic, topic.topic_id, answers))
        return response

    def _read(self, asked: fetch.FetchPartition, space: int) -> fetch.PartitionData:
        index = asked.partition
        start, end = self.starts[index], self.ends[index]
        answer = fetch.PartitionData(index, 0, end, end, start, records=b"")
        if not start <= asked.fetch_offset <= end:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return answer
        found = b""
        for batch in self.logs[index]:
            header = BatchHeader._make(HEADER.unpack_from(batch))  # possibly invalid, which the client has to detect
            if header.last_offset >= asked.fetch_offset:
                if found and len(found) + len(batch) > space:
                    found += batch[: max(0, space - len(found))]  # a broker may truncate the last batch
                    break
                found += batch
        answer.records = found
        return answer

    def _list_offsets(self, request: list_offsets.ListOffsetsRequest) -> list_offsets.ListOffsetsResponse:
        response = list_offsets.ListOffsetsResponse()
        for topic in request.topics:
            answers = [
                list_offsets.ListOffsetsPartitionResponse(p.partition_index, 0, *self._find(p), 0)
                for p in topic.partitions
            ]
            response.topics.append(list_offsets.ListOffsetsTopicResponse(topic.name, answers))
        return response

    def _find(self, asked: list_offsets.ListOffsetsPartition) -> tuple[int, int]:
        if asked.timestamp == -1:
            return -1, self.ends[asked.partition_index]
        if asked.timestamp == -2:
            return -1, self.starts[asked.partition_index]
        for data in self.logs[asked.partition_index]:
            for header, _ in iter_batches(data):
                if header.max_timestamp >= asked.timestamp:
                    return header.max_timestamp, header.base_offset
        return -1, -1
