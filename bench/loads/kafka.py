"""The clients of Kafka's protocol: bench/client.c on librdkafka, and Java's own performance tools."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import confluent_kafka

from bench import compiling
from bench.loads.base import TOPIC, Load, Said, Unsupported, Work, run_all
from bench.peers.base import Peer
from conformance import checks, java_tools

SOURCE = Path(__file__).parents[1] / "client.c"
CLIENT = compiling.PROGRAMS / "client"
_IN_TURN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
_REQUEST = 1_000_000  # bytes, about the default of max.request.size


def build() -> None:
    """Compile bench/client.c, as `compiled` does."""
    compiled(SOURCE)


def compiled(source: Path) -> Path:
    """Compile a C program against the librdkafka in confluent-kafka's wheel; return the program.

    The system's librdkafka may be too old for some brokers. Only its headers are used; the newer library is compatible.
    """
    library = next((Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka-*.so*"), None)
    packages = "gcc librdkafka-dev"
    if library is None:
        return compiling.compiled(source, ["-lrdkafka"], packages=packages)
    return compiling.compiled(source, [str(library), f"-Wl,-rpath,{library.parent}"], [library], packages)


def _producing(work: Work) -> list[str]:
    settings = [f"acks={work.acks}", f"compression.codec={work.compression}", f"bench.partitions={work.partitions}"]
    settings += [f"batch.num.messages={work.batch}"] if work.batch else []
    settings += [f"bench.values={work.values}"] if work.values else []
    # enough for one message of the size, and for a batch of large ones
    return [*settings, f"message.max.bytes={max(1_000_000, 2 * work.size)}"]


def _connecting(peer: Peer) -> list[str]:
    return [f"{name}={value}" for name, value in peer.client_settings.items()]


class Librdkafka(Load):
    """bench/client.c; each reader is a process."""

    starts_over = True

    def __init__(self) -> None:
        build()

    def client(self) -> str:
        return f"bench/client.c on librdkafka {confluent_kafka.libversion()[0]}"

    def check(self, work: Work) -> None:
        """Accept every experiment."""

    @staticmethod
    def _produce_command(peer: Peer, work: Work) -> list[str]:
        command = [str(CLIENT), "produce", peer.address, TOPIC, str(work.count), str(work.size)]
        return [*command, *_producing(work), *_connecting(peer)]

    @staticmethod
    def _consume_command(peer: Peer, work: Work) -> list[str]:
        command = [str(CLIENT), "consume", peer.address, TOPIC, str(work.count), f"bench.partitions={work.partitions}"]
        return [*command, *([f"fetch.message.max.bytes={work.pull}"] if work.pull else []), *_connecting(peer)]

    def produce(self, peer: Peer, work: Work) -> Said:
        return run_all([self._produce_command(peer, work)], work.limit)[0]

    def consume(self, peer: Peer, work: Work, readers: int = 1) -> list[Said]:
        return run_all([self._consume_command(peer, work)] * readers, work.limit)

    def through(self, peer: Peer, work: Work, offset: int) -> Said:
        reading = [*self._consume_command(peer, work), f"bench.offset={offset}"]
        sent, read = run_all([self._produce_command(peer, work), reading], work.limit)
        return replace(read, seconds=read.began + read.seconds - sent.began, began=sent.began)

    def latency(self, peer: Peer, work: Work) -> Said:
        if peer.client_settings:
            raise Unsupported("the reader of bench/client.c's `latency` has no settings of its own")
        return run_all([self.latency_command(peer.address, work)], work.limit)[0]

    @staticmethod
    def latency_command(address: str, work: Work) -> list[str]:
        """Return the command of `latency`."""
        command = [str(CLIENT), "latency", address, TOPIC, str(work.count), str(work.size), str(work.rate)]
        return [*command, "linger.ms=0", f"acks={work.acks}"]


class JavaTools(Load):
    """Java's ProducerPerformance and ConsumerPerformance, whose figures are used."""

    first_run = 100_000  # a JVM that has not compiled what it runs sends a thousand in a second

    def client(self) -> str:
        return f"Apache Kafka's {java_tools.version()} ProducerPerformance and ConsumerPerformance"

    def _run(self, tool: str, limit: float, *options: str) -> str:
        command = [*java_tools.java(), f"org.apache.kafka.tools.{tool}", *options]
        done = checks.run(command, seconds=limit)
        if done.returncode:
            raise RuntimeError(f"{tool}: {checks.last_line(done.stderr or done.stdout)}")
        return done.stdout

    def check(self, work: Work) -> None:
        if work.batch not in (None, 1):
            raise Unsupported("Java's producer bounds batches in bytes, not in messages")

    def produce(self, peer: Peer, work: Work) -> Said:
        options = ["--topic", TOPIC, "--num-records", str(work.count), "--record-size", str(work.size)]
        settings = [f"bootstrap.servers={peer.address}", f"acks={work.acks}", f"compression.type={work.compression}"]
        settings += ["batch.size=1"] if work.batch == 1 else []
        if work.partitions > 1:  # a batch of each partition in each request, which has a MB
            settings += [f"partitioner.class={_IN_TURN}", f"batch.size={_REQUEST // work.partitions}"]
        options += ["--throughput", "-1", "--producer-props", *settings]
        said = self._run("ProducerPerformance", work.limit, *options)
        found = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec", said, re.M)
        if not found:
            raise RuntimeError(f"ProducerPerformance said {said[-200:]!r}")
        messages, rate = int(found[-1][0]), float(found[-1][1])
        return Said(messages, messages * work.size, messages / rate)

    def consume(self, peer: Peer, work: Work, readers: int = 1) -> list[Said]:
        if readers != 1:
            raise Unsupported("one reader only")
        said = self._run(
            "ConsumerPerformance",
            work.limit,
            *("--bootstrap-server", peer.address, "--topic", TOPIC, "--timeout", "60000"),
            *("--messages" if java_tools.version() < "4.2" else "--num-records", str(work.count)),
        )
        cells = [cell.strip() for cell in said.strip().splitlines()[-1].split(",")]
        if len(cells) < 10:
            raise RuntimeError(f"ConsumerPerformance said {said[-200:]!r}")
        # start, end, MB, MB/s, messages, messages/s, rebalance ms, fetch ms, fetch MB/s, fetch messages/s
        messages, milliseconds = int(cells[4]), float(cells[7])
        return [Said(messages, messages * work.size, milliseconds / 1000)]

    def latency(self, peer: Peer, work: Work) -> Said:
        raise Unsupported("not by these tools")
