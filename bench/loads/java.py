"""The clients of the brokers that don't speak Kafka's protocol: each vendor's Java client under bench/loads/java."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.loads.base import Load, Said, Unsupported, Work, run_all
from bench.peers import fetching
from bench.peers.base import Peer
from bench.peers.others import ACTIVEMQ_JARS
from conformance import checks

SOURCES = Path(__file__).parent / "java"
PRODUCE, CONSUME, LATENCY = "produce", "consume", "latency"


@dataclass(frozen=True, slots=True)
class Client:
    """One of the Java programs and what it needs."""

    program: str
    jars: tuple[str, ...]
    named: str
    batches: bool = False


JAVA_LOADS = {
    "rabbitmq": Client("AmqpLoad", ("com.rabbitmq:amqp-client:5.23.0", "org.slf4j:slf4j-nop:1.7.36"), "amqp-client"),
    "rabbitmq-stream": Client(
        "StreamLoad", ("com.rabbitmq:stream-client:1.11.0", "org.slf4j:slf4j-nop:1.7.36"), "stream-client", True
    ),
    "activemq": Client("JmsLoad", ACTIVEMQ_JARS, "activemq-client"),
    "nats": Client("NatsLoad", ("io.nats:jnats:2.20.5",), "jnats"),
    "redis": Client("RedisLoad", ("redis.clients:jedis:5.2.0", "org.slf4j:slf4j-nop:1.7.36"), "jedis", True),
}


class JavaLoad(Load):
    """Run one of the programs. Options that a broker lacks are refused, so that a row never compares different work."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._java = checks.tool("java", "openjdk-17-jre-headless")
        jars = fetching.jars(client.program, client.jars)
        sources = [SOURCES / "Load.java", SOURCES / f"{client.program}.java"]
        self._classes = fetching.java_classes(client.program, jars, sources)

    def client(self) -> str:
        version = self._client.jars[-1 if self._client.named == "activemq-client" else 0].rpartition(":")[2]
        return f"bench/loads/java/{self._client.program}.java on {self._client.named} {version}"

    def _command(self, verb: str, peer: Peer, *options: object) -> list[str]:
        host, _, port = peer.address.partition(":")
        kind = peer.name.rpartition(" ")[2]
        java = [self._java, "-Xmx512m", "-cp", self._classes, self._client.program]
        return [*java, verb, host, port, kind, *map(str, options)]

    def check(self, work: Work) -> None:
        if work.compression != "none" or work.partitions != 1 or work.acks != "all":
            raise Unsupported("no such option in this protocol")
        if work.batch not in (None, 1) and not self._client.batches:
            raise Unsupported("no batches in this protocol: see batches of 1")

    def produce(self, peer: Peer, work: Work) -> Said:
        return run_all([self._command(PRODUCE, peer, work.count, work.size, work.batch or 0)], work.limit)[0]

    def consume(self, peer: Peer, work: Work, readers: int = 1) -> list[Said]:
        if readers != 1 and peer.destructive:
            raise Unsupported("a queue's message goes to one reader")
        return run_all([self._command(CONSUME, peer, work.count)] * readers, work.limit)

    def latency(self, peer: Peer, work: Work) -> Said:
        return run_all([self._command(LATENCY, peer, work.count, work.size, work.rate)], work.limit)[0]
