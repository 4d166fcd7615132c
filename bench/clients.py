"""Python clients side by side against one pylogd broker: 200-byte messages, one topic of one partition.

Strategy: each measurement is a process of its own, so that none inherits another's memory or warm caches; clients take
turns, round by round, and the median counts. A child imports its client, connects, warms up, and then measures wall
time, processor time and how far its resident memory rises, for producing or consuming a number of messages. Slow
clients get fewer messages; the rates are compared.

    python -m bench clients            # writes bench/CLIENTS.md and bench/clients.json
    python -m bench clients --quick --no-write
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.machine import machine
from bench.peers import running
from pylogd.client import Consumer, Producer, aio
from pylogd.client.core.producer.options import ProducerOptions
from tests.pages import json_text, write_page

HERE = Path(__file__).parent
TOPIC = "bench"
VALUE = bytes(200)
KEYS = [b"key-%d" % number for number in range(1000)]
HEADERS: list[Any] = [("content-type", b"application/json"), ("trace", b"0123456789abcdef")]
LINGER_MS = 5
BATCH_BYTES = 256 * 1024
BUFFER_BYTES = 32 * 1024 * 1024
FETCH_BYTES = 1024 * 1024  # per partition, the default of all clients
_CHUNK = 10_000
#: librdkafka stops fetching for a second when its queue is full, which would be measured too
_NO_PAUSE = {"fetch.queue.backoff.ms": 5}


@dataclass(frozen=True)
class Sample:
    """One measurement: messages a second, processor seconds for a million, resident bytes gained at most."""

    rate: float
    cpu: float
    gained: float


class Stopwatch:
    """Measure this process inside a `with` block."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self.sample = Sample(0, 0, 0)

    def __enter__(self) -> Stopwatch:
        Path("/proc/self/clear_refs").write_text("5")  # resets the highest resident size
        self._resident = _highest_resident()
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        self.sample = Sample(self._messages / wall, cpu / self._messages * 1e6, _highest_resident() - self._resident)


def _highest_resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# The clients ---------------------------------------------------------------------------------------------------------


def pylogd_produce(address: str, count: int) -> Sample:
    with Producer(address, linger_ms=LINGER_MS, batch_bytes=BATCH_BYTES, buffer_memory=BUFFER_BYTES) as producer:
        producer.send(TOPIC, VALUE).result()
        with Stopwatch(count) as watch:
            send = producer.send
            for _ in range(count):
                send(TOPIC, VALUE)
            producer.flush()
    return watch.sample


def pylogd_consume(address: str, count: int) -> Sample:
    with Consumer(address, max_poll_records=_CHUNK) as consumer:
        consumer.assign([(TOPIC, 0)])
        left = count - len(consumer.poll(10.0))
        with Stopwatch(left) as watch:
            while left > 0:
                left -= len(consumer.poll(1.0))
    return watch.sample


def pylogd_columns(address: str, count: int) -> Sample:
    import pyarrow  # noqa: F401, PLC0415 - before the watch starts

    with Consumer(address) as consumer:
        consumer.assign([(TOPIC, 0)])
        left = count - sum(batch.num_rows for _, batch in consumer.poll_columns(10.0))
        with Stopwatch(left) as watch:
            while left > 0:
                left -= sum(batch.num_rows for _, batch in consumer.poll_columns(1.0))
    return watch.sample


def pylogd_keyed(address: str, count: int) -> Sample:
    done = [0]

    def delivered(_: object) -> None:
        done[0] += 1

    with Producer(address, linger_ms=LINGER_MS, batch_bytes=BATCH_BYTES, buffer_memory=BUFFER_BYTES) as producer:
        producer.send(TOPIC, VALUE).result()
        with Stopwatch(count) as watch:
            send = producer.send
            for number in range(count):
                send(TOPIC, VALUE, KEYS[number % len(KEYS)], headers=HEADERS, on_delivery=delivered)
            producer.flush()
    if done[0] != count:
        raise SystemExit(f"{done[0]} of {count} callbacks were called")
    return watch.sample


def pylogd_aio_produce(address: str, count: int) -> Sample:
    async def work() -> Sample:
        options = ProducerOptions(linger_ms=LINGER_MS, batch_bytes=BATCH_BYTES, buffer_memory=BUFFER_BYTES)
        async with aio.Producer(address, options) as producer:
            await (await producer.send(TOPIC, VALUE))
            with Stopwatch(count) as watch:
                send = producer.send
                for _ in range(count):
                    await send(TOPIC, VALUE)
                await producer.flush()
        return watch.sample

    return asyncio.run(work())


def pylogd_aio_consume(address: str, count: int) -> Sample:
    async def work() -> Sample:
        async with aio.Consumer(address, max_poll_records=_CHUNK) as consumer:
            await consumer.assign([(TOPIC, 0)])
            left = count - len(await consumer.poll(10.0))
            with Stopwatch(left) as watch:
                while left > 0:
                    left -= len(await consumer.poll(1.0))
        return watch.sample

    return asyncio.run(work())


def confluent_producer(address: str) -> Any:
    """Return a producer that has its connections."""
    import confluent_kafka  # noqa: PLC0415

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "acks": "all",
            "enable.idempotence": True,
            "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
        }
    )
    producer.produce(TOPIC, VALUE)
    producer.flush()
    return producer


def confluent_keyed(address: str, count: int) -> Sample:
    done = [0]

    def delivered(_error: object, _message: object) -> None:
        done[0] += 1

    producer = confluent_producer(address)
    with Stopwatch(count) as watch:
        for number in range(count):
            while True:
                try:
                    producer.produce(TOPIC, VALUE, KEYS[number % len(KEYS)], headers=HEADERS, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.01)
            producer.poll(0)
        producer.flush()
    if done[0] != count:
        raise SystemExit(f"{done[0]} of {count} callbacks were called")
    return watch.sample


def confluent_produce(address: str, count: int) -> Sample:
    producer = confluent_producer(address)
    with Stopwatch(count) as watch:
        produce = producer.produce
        for _ in range(count):
            while True:
                try:
                    produce(TOPIC, VALUE)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.flush()
    return watch.sample


def confluent_consume(address: str, count: int) -> Sample:
    import confluent_kafka  # noqa: PLC0415

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False} | _NO_PAUSE
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    left = count - len(consumer.consume(1, 10.0))
    with Stopwatch(left) as watch:
        while left > 0:
            for message in consumer.consume(_CHUNK, 1.0):
                message.value()
                left -= 1
    consumer.close()
    return watch.sample


def kafka_python_produce(address: str, count: int) -> Sample:
    import kafka  # noqa: PLC0415

    producer = kafka.KafkaProducer(
        bootstrap_servers=address, linger_ms=LINGER_MS, batch_size=BATCH_BYTES, acks="all", enable_idempotence=True
    )
    producer.send(TOPIC, VALUE).get(30)
    with Stopwatch(count) as watch:
        for _ in range(count):
            producer.send(TOPIC, VALUE)
        producer.flush()
    producer.close()
    return watch.sample


def kafka_python_consume(address: str, count: int) -> Sample:
    import kafka  # noqa: PLC0415

    consumer = kafka.KafkaConsumer(bootstrap_servers=address)
    place = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    left = count - sum(len(records) for records in consumer.poll(10_000, max_records=_CHUNK).values())
    with Stopwatch(left) as watch:
        while left > 0:
            left -= sum(len(records) for records in consumer.poll(1000, max_records=_CHUNK).values())
    consumer.close()
    return watch.sample


def aiokafka_produce(address: str, count: int) -> Sample:
    import aiokafka  # noqa: PLC0415

    async def work() -> Sample:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address,
            linger_ms=LINGER_MS,
            max_batch_size=BATCH_BYTES,
            acks="all",
            enable_idempotence=True,
        )
        await producer.start()
        await producer.send_and_wait(TOPIC, VALUE)
        with Stopwatch(count) as watch:
            for _ in range(count):
                await producer.send(TOPIC, VALUE)
            await producer.flush()
        await producer.stop()
        return watch.sample

    return asyncio.run(work())


def aiokafka_consume(address: str, count: int) -> Sample:
    import aiokafka  # noqa: PLC0415

    async def work() -> Sample:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address)
        place = aiokafka.TopicPartition(TOPIC, 0)
        await consumer.start()
        consumer.assign([place])
        consumer.seek(place, 0)
        found = await consumer.getmany(timeout_ms=10_000, max_records=_CHUNK)
        left = count - sum(len(records) for records in found.values())
        with Stopwatch(left) as watch:
            while left > 0:
                found = await consumer.getmany(timeout_ms=1000, max_records=_CHUNK)
                left -= sum(len(records) for records in found.values())
        await consumer.stop()
        return watch.sample

    return asyncio.run(work())


@dataclass(frozen=True)
class Client:
    """A row of the table. `messages`: about as many as it handles in a second; `pure`: without compiled loops."""

    name: str
    work: Callable[[str, int], Sample]
    messages: int
    pure: bool = False
    at_least: int | None = None  # messages a second: the target


PRODUCERS = [
    Client("pylogd", pylogd_produce, 1_000_000),
    Client("pylogd, pure Python", pylogd_produce, 1_000_000, pure=True, at_least=500_000),
    Client("pylogd, asyncio", pylogd_aio_produce, 1_000_000),
    Client("confluent-kafka", confluent_produce, 1_000_000),
    Client("kafka-python", kafka_python_produce, 100_000),
    Client("aiokafka", aiokafka_produce, 100_000),
]
KEYED = [
    Client("pylogd", pylogd_keyed, 300_000, at_least=300_000),
    Client("confluent-kafka", confluent_keyed, 300_000),
]
CONSUMERS = [
    Client("pylogd, columns", pylogd_columns, 2_000_000, at_least=5_000_000),
    Client("pylogd", pylogd_consume, 2_000_000),
    Client("pylogd, pure Python", pylogd_consume, 2_000_000, pure=True, at_least=1_000_000),
    Client("pylogd, asyncio", pylogd_aio_consume, 2_000_000),
    Client("confluent-kafka", confluent_consume, 2_000_000),
    Client("kafka-python", kafka_python_consume, 200_000),
    Client("aiokafka", aiokafka_consume, 400_000),
]
ROLES = {"produce": PRODUCERS, "produce with key, headers and callback": KEYED, "consume": CONSUMERS}


# Running them --------------------------------------------------------------------------------------------------------


def child_command(role: str, client: Client, address: str, scale: float, python: str = sys.executable) -> list[str]:
    """Return the command of the process that measures a client."""
    count = str(int(client.messages * scale))
    return [python, "-m", "bench.clients", "--child", role, client.name, address, count]


def measure(role: str, client: Client, command: list[str], checkout: Path = HERE.parent) -> Sample:
    """Measure a client in a process of its own, with the modules of `checkout`."""
    environment = dict(os.environ, PYTHONPATH=str(checkout))
    environment.pop("PYLOGD_PURE_PYTHON", None)
    if client.pure:
        environment["PYLOGD_PURE_PYTHON"] = "1"
    done = subprocess.run(
        command, env=environment, cwd=checkout, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise SystemExit(f"{client.name} could not {role}:\n{done.stderr}")
    return Sample(**json.loads(done.stdout.splitlines()[-1]))


Found = dict[str, dict[str, list[Sample]]]


def run(rounds: int, scale: float, folder: Path, say: Callable[[str], None]) -> Found:
    """Return all samples by role and client. Producers get a new broker each round, consumers a topic filled before."""
    found: Found = {role: {client.name: [] for client in clients} for role, clients in ROLES.items()}

    def take_turns(role: str, number: int, address: str) -> None:
        for client in ROLES[role]:
            sample = measure(role, client, child_command(role, client, address, scale))
            found[role][client.name].append(sample)
            say(f"{role} {number + 1}/{rounds} {client.name}: {sample.rate:,.0f} msg/s, {sample.cpu:.2f} CPU")

    for number in range(rounds):
        with running("pylogd", folder) as peer:
            pylogd_produce(peer.address, 1000)
            for role in ROLES.keys() - {"consume"}:
                take_turns(role, number, peer.address)
    with running("pylogd", folder) as peer:
        pylogd_produce(peer.address, int(scale * max(client.messages for client in CONSUMERS)))
        for number in range(rounds):
            take_turns("consume", number, peer.address)
    return found


def tables(found: Found, rounds: int, minutes: float, quick: bool) -> str:
    """Return the text of CLIENTS.md."""
    how = "**Quick: a tenth of the messages.** " if quick else ""
    lines = [
        "# Python clients beside each other",
        "",
        "Written by `make bench-clients` (`bench/clients.py`; every round is in `clients.json`). One pylogd broker, "
        "one topic of one partition, 200-byte messages, without keys unless a row says so. Producers: "
        "acks=all, idempotent, no compression, linger 5 ms, batches of up to 256 KiB, and at most 32 MiB "
        "buffered where that can be configured. "
        f"Each measurement is a separate process, which shares the machine's cores with the broker. {how}Median of "
        f"{rounds} rounds, taking turns.",
        "",
        "CPU: the client's own processor seconds for a million messages. Memory: the growth of its resident size "
        "during the measurement.",
        "",
    ]
    for role, samples in found.items():
        lines += [
            f"| {role} | msg/s | beside pylogd | target | | CPU | memory |",
            "| --- | --: | --: | --: | --- | --: | --: |",
        ]
        own = statistics.median(sample.rate for sample in samples["pylogd"])
        for client in ROLES[role]:
            rate, cpu, gained = (
                statistics.median(getattr(sample, name) for sample in samples[client.name])
                for name in ("rate", "cpu", "gained")
            )
            target = f"≥ {client.at_least:,}" if client.at_least else ""
            verdict = "" if client.at_least is None else "met" if rate >= client.at_least else "**missed**"
            lines.append(
                f"| {client.name} | {rate:,.0f} | {rate / own:.2f} | {target} | {verdict} | {cpu:.2f} "
                f"| {gained / 1e6:.0f} MB |"
            )
        lines.append("")
    import confluent_kafka  # noqa: PLC0415 - not into the children of other clients

    about = machine(confluent_kafka.libversion()[0])
    about |= {name: version(name) for name in ("kafka-python", "aiokafka", "pyarrow")}
    lines.append("Measured on: " + ", ".join(f"{k} {v}" for k, v in about.items()) + f", minutes {minutes:.1f}.")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure as the command line says, and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench clients", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of the messages")
    parser.add_argument("--no-write", action="store_true", help="print the tables and write nothing")
    parser.add_argument("--child", nargs=4, metavar=("ROLE", "CLIENT", "ADDRESS", "MESSAGES"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        role, name, address, count = options.child
        (client,) = [client for client in ROLES[role] if client.name == name]
        print(json.dumps(asdict(client.work(address, int(count)))))
        return
    rounds, scale = (1, 0.1) if options.quick else (options.rounds, 1.0)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pylogd-bench-") as folder:
        found = run(rounds, scale, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    text = tables(found, rounds, (time.monotonic() - begun) / 60, options.quick)
    print(text)
    if not options.no_write:
        write_page(HERE / "CLIENTS.md", [text])
        samples = {
            role: {name: [asdict(s) for s in some] for name, some in rows.items()} for role, rows in found.items()
        }
        (HERE / "clients.json").write_text(json_text(samples))


if __name__ == "__main__":
    main()
