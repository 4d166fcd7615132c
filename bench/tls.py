"""What TLS costs, beside Apache Kafka and beside the cipher alone. Writes TLS.md with `--write`.

    python -m bench tls [--rounds 12] [--megabytes 150] [--connections 150] [--brokers pylogd,kafka] [--write]

pylogd and Apache Kafka run side by side, each with the listeners PLAINTEXT, SSL, SASL_SSL and the same certificate
(P-256). In each round every broker is written to and read from by every listener, in an order that is reversed each
round, with bench/client.c (librdkafka, its default batches of up to 1 MB, acks=all). `openssl speed` takes its turn in
each round, with the cipher that librdkafka and the broker agreed on, and blocks of a full TLS record (16 KB).

Messages are of 4 KB and of 100 KB, not compressed. librdkafka makes TLS records of its own of each such message: one
with some bytes in front of it, and one or more with the value (seen with strace). So a message of 4 KB comes in two
small records, and the broker has to decrypt 490,000 records for a GB; one of 100 KB comes mostly in full records.

Measured are processor seconds of the broker's process for a GB (10^9 bytes of values), all threads, user and system,
and MB/s. The client bounds the latter, since it encrypts and decrypts as much as the broker, in one thread.

What TLS costs is read in three ways: the processor time with TLS minus that of the plain listener in the same round;
all of the processor time with TLS; and for producing what pylogd's TLS layer needs by itself, without sockets
(bench/tls_layer.py). The target, at most twice `openssl speed`, is for the first: without TLS the broker needs
processor time too.

For messages of 4 KB the first is not the cost of encryption alone. librdkafka hands a plain socket hundreds of messages
in a call, but with TLS each message in two, and encrypts more slowly than the broker decrypts; so the kernel has more
pieces to pass on, and the broker reads less at a time. The rows "in the same pieces" take that out: a client of its own
(bench/tls_pieces.py) sends the same requests in the pieces in which librdkafka sends them with TLS, at one pace, on
both listeners.

SASL_SSL connections are opened one after the other by a Python client: TCP, TLS, ApiVersions, SCRAM-SHA-512 (4,096
iterations), and closed. Their number for a second of the broker's processor time is reported, with TLS sessions resumed
and without.

All figures are medians over the rounds with their 95 % confidence interval (bootstrap over rounds); ratios are medians
of the rounds' ratios. No time is asserted.
"""

from __future__ import annotations

import argparse
import re
import socket
import ssl
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import confluent_kafka
from confluent_kafka.admin import NewTopic

from bench.harness import interval
from bench.loads.base import run_all
from bench.loads.kafka import CLIENT, build
from bench.machine import machine
from bench.memory import warm_pages
from bench.peers.secured import BROKERS, Secured, add_user, admin, certificates
from bench.tls_connections import Opener
from bench.tls_layer import decrypt_seconds
from bench.tls_pieces import send
from conformance import checks
from pylogd.local.broker import HOST
from tests.pages import write_page

REPORT: Final = Path(__file__).with_name("TLS.md")
DATA: Final = ("PLAINTEXT", "SSL")
#: What is measured, in this order: the command of the client, and the size of a message.
WORK: Final = {
    "produce, 4 KB": ("produce", 4096),
    "fetch, 4 KB": ("consume", 4096),
    "produce, 100 KB": ("produce", 100_000),
    "produce, 4 KB in the same pieces": ("pieces", 4096),
}
_PACE: Final = 250e6  # bytes a second of the pieces: as many as a client in Python can encrypt
GB: Final = 1e9
TARGET: Final = 2.0
TARGET_CONNECTIONS: Final = 500
_LIMIT: Final = 120.0
_WARM_ROUNDS: Final = 2  # for Java's compiler
_RECORD: Final = 16384  # bytes in a full TLS record
_CIPHERS: Final = {"AES_256_GCM": "aes-256-gcm", "AES_128_GCM": "aes-128-gcm", "CHACHA20": "chacha20-poly1305"}

#: What was measured, by (broker, listener or kind of handshake, work, measure); a value for each round.
Samples = dict[tuple[str, ...], list[float]]


class Bench:
    """The brokers that run, and what was measured of them."""

    def __init__(
        self, brokers: dict[str, Secured], keystore: Path, authority: Path, size: int, connections: int
    ) -> None:
        """size: bytes of a round. connections: of each kind in a round. authority: the certificate to trust.

        keystore: the broker's key and certificate.
        """
        self._brokers = brokers
        self._keystore = keystore
        self._authority = authority
        self._size = size
        self._connections = connections
        self._openers = {
            name: Opener(HOST, broker.ports["SASL_SSL"], str(authority)) for name, broker in brokers.items()
        }
        self.samples: Samples = defaultdict(list)

    def round(self, number: int, folder: Path) -> None:
        """Measure everything once."""
        turns = [(name, listener) for name in self._brokers for listener in DATA]
        for name, listener in turns if number % 2 else reversed(turns):
            self._data(name, listener, f"round-{number}-{listener.lower()}", folder)
        spent = {decrypt: openssl_seconds(self.cipher(), decrypt) for decrypt in (True, False)}
        for work, (verb, message) in WORK.items():
            self.samples["openssl", "", work, "seconds"].append(spent[verb != "consume"])
            if verb == "produce":
                self.samples["layer", "", work, "seconds"].append(decrypt_seconds(self._keystore, message, self._size))
        names = list(self._brokers)
        for name in names if number % 2 else reversed(names):
            for resume in (False, True):
                self._open(name, resume)

    def cipher(self) -> str:
        """Return the cipher that librdkafka's OpenSSL and the first broker agree on."""
        broker = next(iter(self._brokers.values()))
        return negotiated(broker.ports["SSL"], self._authority)

    def _data(self, name: str, listener: str, topic: str, folder: Path) -> None:
        broker = self._brokers[name]
        clients = admin(broker)
        config = {"file.delete.delay.ms": "1000"}
        clients.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(_LIMIT)
        address = f"{HOST}:{broker.ports[listener]}"
        authority = None if listener == "PLAINTEXT" else self._authority
        options = [] if authority is None else ["security.protocol=ssl", f"ssl.ca.location={authority}"]
        for work, (verb, size) in WORK.items():
            if verb != "consume":
                warm_pages(folder, self._size)
            before = broker.cpu_seconds()
            if verb == "pieces":
                sent = send(broker.ports[listener], authority, topic, size, self._size, _PACE)
            else:
                sizes = [str(self._size // size), str(size)] if verb == "produce" else [str(self._size // size)]
                [said] = run_all([[str(CLIENT), verb, address, topic, *sizes, *options]], _LIMIT)
                sent = said.bytes
                self.samples[name, listener, work, "rate"].append(sent / said.seconds / 1e6)
            spent = broker.cpu_seconds() - before
            self.samples[name, listener, work, "cpu"].append(spent / sent * GB)
        clients.delete_topics([topic])[topic].result(_LIMIT)

    def _open(self, name: str, resume: bool) -> None:
        broker, opener = self._brokers[name], self._openers[name]
        if opener.session is None:
            opener.open(resume=False)
        before, begun = broker.cpu_seconds(), time.monotonic()
        resumed = sum(opener.open(resume) for _ in range(self._connections))
        spent, took = broker.cpu_seconds() - before, time.monotonic() - begun
        kind = "resumed" if resume else "full"
        self.samples[name, kind, "connect", "resumed"].append(resumed / self._connections)
        self.samples[name, kind, "connect", "rate"].append(self._connections / spent)
        self.samples[name, kind, "connect", "wall"].append(self._connections / took)


def negotiated(port: int, authority: Path) -> str:
    """Return the cipher of TLS that a listener agrees on, by the name of the TLS standard."""
    context = ssl.create_default_context(cafile=authority)
    with socket.create_connection((HOST, port)) as plain, context.wrap_socket(plain, server_hostname=HOST) as tls:
        chosen = tls.cipher()
        return chosen[0] if chosen else ""


def openssl_seconds(cipher: str, decrypt: bool) -> float:
    """Return the processor seconds that `openssl speed` needs for a GB in blocks of a TLS record."""
    name = next((known for part, known in _CIPHERS.items() if part in cipher), "aes-256-gcm")
    program = checks.tool("openssl", "openssl")
    command = [program, "speed", "-mr", "-seconds", "1", "-bytes", str(_RECORD), "-evp", name, *["-decrypt"] * decrypt]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"^\+F:\d+:[^:]+:([\d.]+)", said, re.M)
    assert found is not None, said
    return GB / float(found[1])


class Page:
    """The page of results."""

    def __init__(self, samples: Samples, names: Sequence[str]) -> None:
        self._samples = samples
        self._names = names

    def _values(self, *key: str) -> list[float]:
        return self._samples[key]

    def _ratios(self, one: Sequence[float], other: Sequence[float]) -> list[float]:
        return [mine / theirs for mine, theirs in zip(one, other, strict=True)]

    def lines(self) -> Iterator[str]:
        """Yield the tables."""
        yield from self._data()
        yield from self._cost()
        yield from self._connections()

    def _data(self) -> Iterator[str]:
        both = "kafka" in self._names and "pylogd" in self._names
        columns = [f"{name}, {listener}" for name in self._names for listener in DATA]
        yield "| | " + " | ".join([*columns, *["pylogd : kafka, SSL"] * both]) + " |"
        yield "| --- |" + " ---: |" * len(columns) + " --- |" * both
        for work, (verb, _) in WORK.items():
            for measure, unit, digits in (("rate", "MB/s", 0), ("cpu", "broker's processor, s/GB", 2)):
                if measure == "rate" and verb == "pieces":
                    continue  # which is the pace
                cells = [
                    interval(self._values(name, listener, work, measure), digits)
                    for name in self._names
                    for listener in DATA
                ]
                if both:
                    pairs = [self._values(name, "SSL", work, measure) for name in ("pylogd", "kafka")]
                    cells.append(interval(self._ratios(*pairs)))
                yield f"| {work}, {unit} | " + " | ".join(cells) + " |"
        yield ""

    def _cost(self) -> Iterator[str]:
        yield (
            f"| | TLS minus plain, s/GB | openssl speed, s/GB | ratio (target: at most {TARGET:g}) "
            "| all with TLS : openssl speed |"
        )
        yield "| --- | ---: | ---: | --- | --- |"
        for name in self._names:
            for work in WORK:
                alone = self._values("openssl", "", work, "seconds")
                plain, tls = (self._values(name, listener, work, "cpu") for listener in DATA)
                more = [after - before for after, before in zip(tls, plain, strict=True)]
                cells = [interval(more), interval(alone), interval(self._ratios(more, alone))]
                yield f"| {name}, {work} | " + " | ".join([*cells, interval(self._ratios(tls, alone))]) + " |"
        yield ""
        yield "| pylogd's TLS layer alone | s/GB | openssl speed, s/GB | ratio |"
        yield "| --- | ---: | ---: | --- |"
        for work in WORK:
            layer, alone = (self._values(name, "", work, "seconds") for name in ("layer", "openssl"))
            if layer:
                cells = [interval(layer), interval(alone), interval(self._ratios(layer, alone))]
                yield f"| {work} | " + " | ".join(cells) + " |"
        yield ""

    def _connections(self) -> Iterator[str]:
        target = f"for a second of the broker's processor (target: {TARGET_CONNECTIONS})"
        yield f"| SASL_SSL connections | {target} | a second | share that the broker resumed |"
        yield "| --- | --- | --- | --- |"
        for name in self._names:
            for kind, text in (("resumed", "resumption asked for"), ("full", "full handshake")):
                cells = [interval(self._values(name, kind, "connect", measure), 0) for measure in ("rate", "wall")]
                cells.append(f"{statistics.fmean(self._values(name, kind, 'connect', 'resumed')):.2f}")
                yield f"| {name}, {text} | " + " | ".join(cells) + " |"
        yield ""


def page(bench: Bench, brokers: dict[str, Secured], rounds: int, megabytes: int, cipher: str) -> str:
    """Return the page."""
    openssl = subprocess.run(["openssl", "version"], capture_output=True, text=True, check=True).stdout.strip()
    where = ", ".join(f"{key} {value}" for key, value in machine(confluent_kafka.libversion()[0]).items())
    return "\n".join(
        [
            "# What TLS costs",
            "",
            f"By `make bench-tls` ({rounds} rounds of {megabytes} MB, {time.strftime('%Y-%m-%d')}); the docstring of "
            "bench/tls.py explains the method. Each figure is the median over the rounds, and in brackets its 95 % "
            f"confidence interval. The cipher is {cipher}.",
            "",
            *Page(bench.samples, list(brokers)).lines(),
            "Brokers: " + "; ".join(f"{name}: {broker.version()}" for name, broker in brokers.items()) + ". "
            f"`openssl speed -evp -bytes {_RECORD}` of {openssl}, decrypting for produce and encrypting for fetch.",
            "",
            f"Measured on {where}.",
            "",
        ]
    )


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description="what TLS costs")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=11.0, help="no further round is begun after this time (11)")
    parser.add_argument("--megabytes", type=int, default=150, help="what is written and read each time (150)")
    parser.add_argument("--connections", type=int, default=150, help="connections of each kind in a round (150)")
    parser.add_argument("--brokers", default="pylogd,kafka", help="which brokers (pylogd,kafka)")
    parser.add_argument("--write", action="store_true", help="write TLS.md")
    options = parser.parse_args()
    build()
    with tempfile.TemporaryDirectory(prefix="tls-", dir=CLIENT.parent) as name, ExitStack() as stack:
        folder = Path(name)
        keystore, authority = certificates(folder)
        brokers: dict[str, Secured] = {}
        for each in options.brokers.split(","):
            broker = brokers[each] = BROKERS[each](folder, keystore)
            stack.callback(broker.stop)
            broker.start()
            add_user(broker)
        bench = Bench(brokers, keystore, authority, options.megabytes * 1_000_000, options.connections)
        begun, done = time.monotonic(), 0
        for number in range(-_WARM_ROUNDS if "kafka" in brokers else -1, options.rounds):
            if number == 0:
                bench.samples.clear()
            if number > 0 and time.monotonic() - begun > options.minutes * 60:
                break
            bench.round(number, folder)
            done = number + 1
        text = page(bench, brokers, done, options.megabytes, bench.cipher())
    print(text)
    if options.write:
        write_page(REPORT, [text])


if __name__ == "__main__":
    main()
