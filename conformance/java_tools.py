"""Apache Kafka's Java client, run through Kafka's console and performance tools from Maven Central."""

from __future__ import annotations

import re
import shutil
import tempfile
import uuid
from pathlib import Path

from conformance import checks
from conformance.checks import CACHE, HERE, Check, expect

TOOLS = "org.apache.kafka.tools."
POM = HERE / "java" / "pom.xml"
#: The jars of Kafka Streams and of its system tests.
STREAMS_POM = HERE / "java" / "streams.xml"
#: The jars of MirrorMaker 2.
MIRROR_POM = HERE / "java" / "mirror.xml"
#: The jars of Kafka Connect, and of Apache Flink with its connector.
CONNECT_POM = HERE / "java" / "connect.xml"
FLINK_POM = HERE / "java" / "flink.xml"


def version() -> str:
    """Return the pinned version of Apache Kafka."""
    return _pinned(POM, "kafka")


def java() -> list[str]:
    """Return the start of a command that runs a main class of Kafka's jars, which are downloaded at the first use."""
    program = checks.tool("java", "openjdk-17-jre-headless")
    return [program, "-Xmx400m", "-cp", f"{_jars(POM, 'kafka')}/*"]


def compiled(source: Path, *options: str) -> list[str]:
    """Return a command that runs a source file with a main class on Kafka's jars. It is compiled if it has changed.

    options: of the virtual machine, in place of those of `java`.
    """
    program, _, _, jars = java()
    return [program, *options, *_with_jars(source, jars, version())]


def _with_jars(source: Path, jars: str, of: str) -> list[str]:
    """Return the class path and the main class of a source file, which is compiled if it has changed."""
    folder = CACHE / "java" / f"{source.stem}-{of}"
    if not folder.exists() or folder.stat().st_mtime < source.stat().st_mtime:
        compiler = checks.tool("javac", "openjdk-17-jdk-headless")
        folder.mkdir(parents=True, exist_ok=True)
        done = checks.run([compiler, "-cp", jars, "-d", str(folder), str(source)], seconds=120)
        if done.returncode:
            raise checks.Missing(f"{source.name} could not be compiled: {checks.last_line(done.stderr)}")
        folder.touch()
    return ["-cp", f"{folder}:{jars}", source.stem]


def streams() -> list[str]:
    """Return the same for Kafka Streams and its system tests."""
    program = checks.tool("java", "openjdk-17-jre-headless")
    return [program, "-Xmx400m", "-cp", f"{_jars(STREAMS_POM, 'streams')}/*"]


def mirror_maker() -> list[str]:
    """Return the same for MirrorMaker 2, without a limit of its memory."""
    program = checks.tool("java", "openjdk-17-jre-headless")
    return [program, "-cp", f"{_jars(MIRROR_POM, 'mirror')}/*"]


def connect_version() -> str:
    """Return the pinned version of Kafka Connect."""
    return _pinned(CONNECT_POM, "connect")


def connect() -> list[str]:
    """Return the same for Kafka Connect."""
    program = checks.tool("java", "openjdk-17-jre-headless")
    return [program, "-Xmx400m", "-cp", f"{_jars(CONNECT_POM, 'connect', connect_version())}/*"]


def flink_version() -> str:
    """Return the pinned version of Apache Flink."""
    return _pinned(FLINK_POM, "flink")


def flink(source: Path) -> list[str]:
    """Return a command that runs a source file with a main class on Flink's jars."""
    program = checks.tool("java", "openjdk-17-jre-headless")
    jars = f"{_jars(FLINK_POM, 'flink', flink_version())}/*"
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util", "java.time")]
    return [program, "-Xmx800m", *opens, *_with_jars(source, jars, flink_version())]


def _pinned(pom: Path, product: str) -> str:
    """Return the version of a product that a Maven file names."""
    found = re.search(rf"<{product}.version>([^<]+)<", pom.read_text())
    return found[1] if found else "unknown"


def _jars(pom: Path, name: str, of: str = "") -> Path:
    """Return the folder of the jars that a Maven file names. They are downloaded if they are not there.

    of: the version of the product in the Maven file, by default that of Apache Kafka.
    """
    folder = CACHE / "java" / f"{name}-{of or version()}"
    if not folder.exists():
        maven = checks.tool("mvn", "maven")
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        options = [f"-Dkafka.version={version()}", f"-DoutputDirectory={partial}"]
        checks.fetched([maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *options], f"jars: {name}")
        partial.rename(folder)
    return folder


class _Tools:
    """Run the tools against one broker, and collect the checks."""

    def __init__(self, address: str) -> None:
        self.java = java()
        self.server = ["--bootstrap-server", address]
        self.address = address
        self.checks: list[Check] = []

    def run(
        self, package: str, tool: str, *options: str, stdin: str | None = None, seconds: float = 60
    ) -> tuple[str, str]:
        """Run a tool for at most `seconds`. Return its standard output and the last line of its standard error."""
        done = checks.run([*self.java, package + tool, *options], seconds=seconds, stdin=stdin)
        why = next((line for line in done.stderr.splitlines() if "Exception" in line or "ERROR" in line), "")
        out = done.stdout if done.returncode == 0 else ""
        return out, why[:300] or checks.last_line(done.stderr or done.stdout)

    def tool(self, tool: str, *options: str, stdin: str | None = None, seconds: float = 60) -> tuple[str, str]:
        """Run a tool that takes --bootstrap-server."""
        return self.run(TOOLS, tool, *self.server, *options, stdin=stdin, seconds=seconds)

    def expect(self, name: str, condition: bool, why: str) -> None:
        """Keep a check."""
        self.checks.append(expect(name, condition, why))


def suite(address: str) -> list[Check]:
    """Run all checks: topics, console tools, codecs, performance tools, offsets, configs, records, log directories."""
    tools = _Tools(address)
    topic = f"java-{uuid.uuid4().hex[:8]}"
    _topics(tools, topic)
    _console(tools, topic)
    _performance(tools, f"{topic}-speed")
    _admin(tools, topic)
    _compatibility(tools, f"{topic}-compatible")
    _groups(tools, topic)
    return tools.checks


def _topics(tools: _Tools, topic: str) -> None:
    said, why = tools.tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    tools.expect("TopicCommand --create", "Created topic" in said, why)
    said, why = tools.tool("TopicCommand", "--list")
    tools.expect("TopicCommand --list", topic in said.split(), why)
    said, why = tools.tool("TopicCommand", "--describe", "--topic", topic)
    tools.expect("TopicCommand --describe", "PartitionCount: 2" in said, why)
    said, why = tools.tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "3")
    described, _ = tools.tool("TopicCommand", "--describe", "--topic", topic)
    tools.expect("TopicCommand --alter --partitions", "PartitionCount: 3" in described, why)


def _console(tools: _Tools, topic: str) -> None:
    lines = "".join(f"key-{number}\tvalue {number}\n" for number in range(200))
    keyed = ["--reader-property", "parse.key=true"]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        one = f"{topic}-{codec}"
        create = ["--create", "--topic", one, "--partitions", "1"]
        tools.tool("TopicCommand", *create)
        said, why = tools.tool("ConsoleProducer", "--topic", one, "--compression-codec", codec, *keyed, stdin=lines)
        read = ["--topic", one, "--partition", "0", "--offset", "earliest", "--max-messages", "200"]
        said, late = tools.tool(
            "consumer.ConsoleConsumer", *read, "--formatter-property", "print.key=true", "--timeout-ms", "20000"
        )
        tools.expect(f"ConsoleProducer, ConsoleConsumer --partition: {codec}", said == lines, f"{why} / {late}")
    read = ["--topic", f"{topic}-none", "--partition", "0", "--offset", "150", "--max-messages", "1"]
    said, why = tools.tool("consumer.ConsoleConsumer", *read, "--timeout-ms", "20000")
    tools.expect("ConsoleConsumer --offset", said == "value 150\n", why)
    idempotent = ["--producer-property", "enable.idempotence=true", "--producer-property", "acks=all"]
    said, why = tools.tool("ConsoleProducer", "--topic", f"{topic}-none", *idempotent, stdin="once\n")
    read = ["--topic", f"{topic}-none", "--partition", "0", "--offset", "200", "--max-messages", "1"]
    said, late = tools.tool("consumer.ConsoleConsumer", *read, "--timeout-ms", "20000")
    tools.expect("ConsoleProducer, idempotent", said == "once\n", f"{why} / {late}")


def _performance(tools: _Tools, topic: str) -> None:
    size = ["--num-records", "200000", "--record-size", "200", "--throughput", "-1"]
    for acks in ("1", "all"):
        properties = ["--producer-props", f"bootstrap.servers={tools.address}", f"acks={acks}"]
        said, why = tools.run(TOOLS, "ProducerPerformance", "--topic", topic, *size, *properties, seconds=120)
        tools.expect(f"ProducerPerformance, acks={acks}", "200000 records sent" in said, why)


def _admin(tools: _Tools, topic: str) -> None:
    said, why = tools.tool("GetOffsetShell", "--topic", f"{topic}-speed", "--time", "-1")
    tools.expect("GetOffsetShell, latest", f"{topic}-speed:0:400000" in said, why)
    said, why = tools.tool("GetOffsetShell", "--topic", f"{topic}-speed", "--time", "-2")
    tools.expect("GetOffsetShell, earliest", f"{topic}-speed:0:0" in said, why)
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "records.json"
        request.write_text(f'{{"partitions":[{{"topic":"{topic}-speed","partition":0,"offset":1000}}],"version":1}}')
        said, why = tools.tool("DeleteRecordsCommand", "--offset-json-file", str(request))
    tools.expect("DeleteRecordsCommand", "low_watermark: 1000" in said, why)
    said, why = tools.tool("LogDirsCommand", "--describe", "--topic-list", topic)
    tools.expect("LogDirsCommand", f'"{topic}-0"' in said, why)
    where = ["--entity-type", "topics", "--entity-name", topic]
    config = (TOOLS, "ConfigCommand", *tools.server, *where)
    said, why = tools.run(*config, "--alter", "--add-config", "retention.ms=60000")
    said, late = tools.run(*config, "--describe", "--all")
    changed = "retention.ms=60000" in said and "segment.bytes=1073741824" in said
    tools.expect("ConfigCommand --alter, --describe --all", changed, f"{why} / {late}")
    said, why = tools.run(TOOLS, "ClusterTool", "cluster-id", *tools.server)
    tools.expect("ClusterTool cluster-id", "Cluster ID: " in said, why)
    said, why = tools.tool("BrokerApiVersionsCommand")
    tools.expect("BrokerApiVersionsCommand", "Produce(0)" in said and "Fetch(1)" in said, why)
    tools.tool("TopicCommand", "--delete", "--topic", f"{topic}-zstd")
    said, why = tools.tool("TopicCommand", "--list")
    tools.expect("TopicCommand --delete", bool(said) and f"{topic}-zstd" not in said.split(), why)


def _compatibility(tools: _Tools, topic: str) -> None:
    tools.tool("TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    versions, _ = tools.tool("BrokerApiVersionsCommand")
    supported = {
        "offsets-for-times-supported": "True",
        "cluster-id-supported": "True",
        "expect-record-too-large-exception": "False",
        "create-topics-supported": "True",
        "describe-acls-supported": "False" if "DescribeAcls(29): UNSUPPORTED" in versions else "True",
        "describe-configs-supported": "True",
        "idempotent-producer-supported": "True",
    }
    options = [word for name, value in supported.items() for word in (f"--{name}", value)]
    said, why = tools.tool("ClientCompatibilityTest", "--topic", topic, "--num-cluster-nodes", "1", *options)
    tools.expect("ClientCompatibilityTest", "SUCCESS" in said.upper(), why)


def _groups(tools: _Tools, topic: str) -> None:
    read = ["--topic", f"{topic}-none", "--from-beginning", "--max-messages", "200", "--timeout-ms", "15000"]
    said, why = tools.tool("consumer.ConsoleConsumer", *read)
    tools.expect("ConsoleConsumer, by group", said.startswith("value 0\n"), why)
    said, why = tools.tool("ConsumerPerformance", "--topic", f"{topic}-speed", "--messages", "100000")
    rows = [line.split(", ") for line in said.splitlines() if line.startswith("20")]
    tools.expect("ConsumerPerformance", bool(rows) and float(rows[-1][4]) >= 100_000, why)
