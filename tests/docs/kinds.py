"""What runs each code block of README.md and docs/*.md: one table for all.

A block has a *kind*: by its own first line, else by its page and language, else by its language alone. Each kind is run
by one module of tests (`RUN_BY`). A block that has no kind fails `tests/unit/test_docs_blocks.py`, and so does a row
here that no block uses. `EXCEPTED` has the blocks that no test runs, and `LINES_EXCEPTED` lines within blocks, each
with its reason.
"""

from __future__ import annotations

import re

from tests.docs.blocks import Block, all_blocks

#: The module of tests that runs all blocks of a kind.
RUN_BY = {
    "commands": "tests/unit/cli/test_commands_doc.py",
    "console": "tests/unit/services/console/test_parts.py",
    "profiles": "tests/integration/docs/test_pages.py",
    "settings": "tests/unit/test_docs_blocks.py",
    "client properties": "tests/unit/test_docs_blocks.py",
    "librdkafka": "tests/unit/test_docs_blocks.py",
    "users file": "tests/unit/test_docs_blocks.py",
    "json": "tests/unit/test_docs_blocks.py",
    "diagram": "tests/unit/test_docs_blocks.py",
    "message": "tests/unit/test_docs_blocks.py",
    "layout": "tests/integration/spark/test_docs.py",
    "scrape configuration": "tests/integration/machine/test_promtool.py",
    "plug-in": "tests/unit/broker/security/test_plugins.py",
    "program": "tests/integration/docs/test_pages.py",
    "output": "tests/integration/docs/test_pages.py",
    "session": "tests/integration/docs/test_pages.py",
    "one broker": "tests/integration/docs/test_pages.py",
    "quickstart": "tests/integration/docs/test_pages.py",
    "stopped broker": "tests/integration/docs/test_pages.py",
    "metrics": "tests/integration/docs/test_pages.py",
    "mirror": "tests/integration/docs/test_pages.py",
    "chain": "tests/integration/docs/test_chain.py",
    "cluster": "tests/integration/docs/test_cluster.py",
    "secured": "tests/integration/docs/test_security.py",
    "spark": "tests/integration/spark/test_docs.py",
    "connect": "tests/integration/spark/lake/test_connect.py",
    "pipeline": "tests/integration/spark/test_options_of_spark.py",
    "queries": "tests/integration/spark/lake/test_queries.py",
    "typed": "tests/integration/spark/lake/test_typed.py",
}

BY_LANGUAGE = {
    "toml": "settings",
    "properties": "client properties",
    "json": "json",
    "mermaid": "diagram",
    "yaml": "scrape configuration",
    "text": "message",
}

BY_PAGE = {
    ("README.md", "sh"): "session",
    ("README.md", "python"): "session",
    ("docs/audit.md", "python"): "session",
    ("docs/audit.md", "sh"): "session",
    ("docs/authentication.md", "sh"): "session",
    ("docs/authorization.md", "sh"): "session",
    ("docs/authorization.md", "python"): "plug-in",
    ("docs/client.md", "python"): "program",
    ("docs/quickstart-develop.md", "python"): "program",
    ("docs/quickstart-develop.md", "text"): "output",
    ("docs/cluster.md", "sh"): "cluster",
    ("docs/operations.md", "sh"): "cluster",
    ("docs/profiles.md", "sh"): "profiles",
    ("docs/quickstart-analyse.md", "python"): "spark",
    ("docs/quickstart-analyse.md", "sh"): "spark",
    ("docs/quickstart-analyse.md", "text"): "spark",
    ("docs/quickstart-run.md", "sh"): "cluster",
    ("docs/quickstart-try.md", "sh"): "quickstart",
    ("docs/troubleshooting.md", "sh"): "cluster",
    ("docs/zookeeper.md", "sh"): "cluster",
    ("docs/zookeeper.md", "python"): "cluster",
    ("docs/client.md", "text"): "output",
    ("docs/commands.md", "text"): "commands",
    ("docs/commands.md", "toml"): "commands",
    ("docs/console.md", "toml"): "console",
    ("docs/consuming.md", "sh"): "session",
    ("docs/exactly-once.md", "python"): "session",
    ("docs/exactly-once.md", "sh"): "session",
    ("docs/lake.md", "python"): "spark",
    ("docs/lake.md", "sh"): "spark",
    ("docs/mirror.md", "sh"): "mirror",
    ("docs/mirror.md", "toml"): "mirror",
    ("docs/monitoring.md", "sh"): "session",
    ("docs/pipeline.md", "python"): "spark",
    ("docs/pipeline.md", "sh"): "spark",
    ("docs/producing.md", "python"): "session",
    ("docs/quotas.md", "sh"): "session",
    ("docs/schema-registry.md", "sh"): "session",
    ("docs/schema-registry.md", "python"): "spark",
    ("docs/security.md", "sh"): "secured",
    ("docs/security.md", "toml"): "secured",
    ("docs/security.md", "properties"): "secured",
    ("docs/spark.md", "python"): "spark",
    ("docs/tables.md", "python"): "queries",
    ("docs/tables.md", "sh"): "queries",
    ("docs/tables.md", "sql"): "queries",
    ("docs/typed-tables.md", "python"): "typed",
    ("docs/typed-tables.md", "sh"): "typed",
    ("docs/typed-tables.md", "sql"): "typed",
}

#: By page and first line.
BY_FIRST_LINE = {
    ("README.md", "pip install . && pylogd broker --data ./data"): "one broker",
    ("README.md", "# a topic of three partitions, kept for a day"): "one broker",
    ("README.md", "pip install 'pylogd-broker[zookeeper]'"): "cluster",
    ("README.md", "pip install 'pylogd-broker[spark,schemas,plot]'"): "spark",
    ("docs/audit.md", "pylogd audit flights"): "spark",
    ("docs/authentication.md", "# a line for each user"): "users file",
    ("docs/authentication.md", "# librdkafka has names of its own"): "librdkafka",
    ("docs/client.md", "from pylogd.client import Producer, SecurityOptions"): "secured",
    ("docs/operations.md", "pylogd verify-log ./data"): "stopped broker",
    ("docs/troubleshooting.md", "pylogd verify-log ./data"): "stopped broker",
    ("docs/lake.md", "topic=flights/date=2026-11-21/hour=07/9f3c…-part-….parquet"): "layout",
    ("docs/pipeline.md", "topic=flights/date=2026-11-21/hour=07/9f3c…-part-….parquet"): "layout",
    ("docs/monitoring.md", "pip install 'pylogd-broker[metrics]'"): "metrics",
    ("docs/spark.md", "from pyspark import pipelines as dp"): "pipeline",
    ("docs/pipeline.md", "pip install 'pylogd-broker[connect]'"): "connect",
    ("docs/pipeline.md", "defaults"): "chain",
    ("docs/pipeline.md", '"zookeeper.connect" = "zk1:2181/chain"'): "chain",
    ("docs/pipeline.md", "haproxy -db -f haproxy.cfg &"): "chain",
    ("docs/pipeline.md", 'name = "chain"'): "chain",
    ("docs/pipeline.md", "pylogd mirror check chain.toml"): "chain",
    ("docs/pipeline.md", "from pylogd.client import AuditedProducer, Producer"): "chain",
    ("docs/pipeline.md", "from pylogd.client import Consumer"): "chain",
    ("docs/pipeline.md", "pylogd groups list --lag -z zk1:2181/chain -b 127.0.0.1:9090"): "chain",
}

_FIVE = "needs five brokers with labels: tests/integration/clusters/test_labels.py has them"
_OTHER_CLIENT = "a part of a program with placeholders; each mechanism is tried with this client by "
#: By page and first line: what no test runs, and why.
EXCEPTED = {
    ("README.md", "make demo"): "tests/integration/machine/test_demo.py runs the demo",
    ("README.md", "make test"): "it is the test suite",
    (
        "docs/audit.md",
        "pylogd audit wait flights 2026-11-23T07 --stage lake --timeout 3600 && spark-submit hourly.py",
    ): ("waits for a complete hour: tests/integration/services/test_audit_service.py has one"),
    ("docs/authentication.md", "kgo.NewClient("): _OTHER_CLIENT + "make conformance",
    ("docs/authentication.md", "new Kafka({"): _OTHER_CLIENT + "make conformance",
    ("docs/authentication.md", "KafkaProducer("): _OTHER_CLIENT + "tests/integration/test_sasl.py",
    ("docs/workers.md", "pylogd broker --workers 4 --listen 127.0.0.1:9092 --data /var/lib/pylogd"): (
        "tests/integration/clusters/test_workers.py runs workers"
    ),
    (
        "docs/console.md",
        "pip install 'pylogd-broker[console]'",
    ): "tests/integration/services/test_console.py starts the console",
    ("docs/console.md", "pylogd console --config console.toml"): "as the block before; the file is read by a test",
    ("docs/cluster.md", "pylogd brokers maintenance enable 3"): (
        "leaves the cluster of this test without a broker: tests/integration/clusters/test_cluster_cli.py does it"
    ),
    ("docs/monitoring.md", "kafka-client-metrics.sh --bootstrap-server localhost:9092 --alter \\"): (
        "Kafka's own tool: make conformance-metrics runs it"
    ),
    ("docs/install.md", "python3 -m venv venv && . venv/bin/activate"): "make first-minutes types it on a new machine",
    ("docs/install.md", "pipx install 'pylogd-broker[tls,metrics]'"): "make first-minutes types it on a new machine",
    (
        "docs/install.md",
        "sh packages/build-wheels.sh python3 dist",
    ): "make debian and make container do it, in a system of their own",
    (
        "docs/install.md",
        "python3 -m venv /opt/pylogd && /opt/pylogd/bin/pip install 'pylogd-broker[tls,metrics,schemas,mirror]'",
    ): "changes the machine: tests/unit/test_systemd_units.py verifies the units",
    (
        "docs/install.md",
        "helm install events packages/helm/pylogd --set image.repository=registry.example.org/pylogd \\",
    ): "make helm renders the chart",
    ("docs/install.md", "/var/log/pylogd/*.log {"): "the configuration of logrotate",
    (
        "docs/install.md",
        "sh packages/verify.sh FOLDER allowed_signers",
    ): "tests/unit/test_packages.py checks a release with it",
    ("docs/install.md", "make release RELEASE_KEY=key"): "makes a release: tests/unit/test_packages.py makes one",
    ("docs/labels.md", "pylogd cluster up -n 5 --data /tmp/cluster"): _FIVE,
    ("docs/labels.md", "pylogd topics create orders -p 3 -r 3 -c placement.label=online"): _FIVE,
    ("docs/labels.md", "pylogd topics create wide -r 3 -c placement.label=logs"): _FIVE,
    ("docs/labels.md", "pylogd topics relabel clicks online --plan"): _FIVE,
    ("docs/labels.md", "pylogd cluster describe --misplaced"): _FIVE,
    (
        "docs/labels.md",
        "pylogd broker --node-id 11 --set broker.rack=dc1 --set broker.labels=online,online-dc1 ...",
    ): _FIVE,
    ("docs/spark.md", "PYSPARK_PYTHON=/opt/jobs/bin/python spark-submit --master spark://HOST:7077 job.py"): (
        "needs a cluster of Spark"
    ),
}

#: Lines of sh blocks that are left out when the block runs: a pattern of the whole line, and why.
LINES_EXCEPTED = {
    r"pip install .*": "packages are installed by make install; that their extras exist is checked",
    r"pipx install .*": "as pip install",
    r"pylogd transactions abort orders 0 --start-offset 1234": (
        "needs a transaction that hangs: tests/integration/test_transactions.py makes one, and ends it"
    ),
    r"sudo .*|apt-get .*|systemctl .*": "changes the machine",
}


def kind_of(block: Block) -> str | None:
    """Return the kind of a block: "excepted", a key of `RUN_BY`, or None for a block that the tables do not have."""
    named = block.page, block.first
    if named in EXCEPTED:
        return "excepted"
    found = BY_FIRST_LINE.get(named) or BY_PAGE.get((block.page, block.language))
    return found or BY_LANGUAGE.get(block.language)


def blocks_of_kind(kind: str, *languages: str, page: str = "") -> list[Block]:
    """Return the blocks of a kind in the order of pages and lines, optionally of one page, or of some languages."""
    return [
        block
        for block in all_blocks()
        if kind_of(block) == kind
        and (not languages or block.language in languages)
        and (not page or block.page == page)
    ]


def excepted_line(line: str) -> bool:
    """Whether a line of a sh block is left out."""
    return any(re.fullmatch(pattern, line.partition(" #")[0].strip()) for pattern in LINES_EXCEPTED)
