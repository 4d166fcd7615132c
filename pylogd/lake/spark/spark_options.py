"""The options of Spark itself, which it passes to sources and sinks too.

Rules: a source or a sink in Python gets all options of a reader, a writer or a table, also those for Spark itself. The
options in this table are accepted, and the table says how each is handled. `docs/spark.md` has the same table for
users, and `tests/integration/spark/test_options_of_spark.py` compares it with what Spark passes. Must not know:
brokers, Spark.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pylogd.lake.spark.errors import OptionError

_log = logging.getLogger(__name__)

#: The option with which Spark writes a query's progress only after several micro-batches.
ASYNC_PROGRESS: Final = "asyncProgressTrackingEnabled"
#: The option that says how long Spark's Kafka source may use the numbers of partitions that it has read.
METADATA_TTL: Final = "partition.metadata.cache.ttl.ms"
#: Options that name files, for sources that have files.
PATHS: Final = ("path", "paths")

#: The names of the options, and how each is handled.
OPTIONS_OF_SPARK: Final[Mapping[str, str]] = MappingProxyType(
    {
        "path": "ignored with a warning",
        "paths": "ignored with a warning",
        "queryName": "Spark uses it",
        "checkpointLocation": "Spark uses it",
        ASYNC_PROGRESS: "Spark refuses it for sinks in Python; with `transactional` this sink refuses it too",
        "asyncProgressTrackingCheckpointIntervalMs": "Spark uses it",
        "_asyncProgressTrackingOverrideSinkSupportCheck": "Spark uses it",
        METADATA_TTL: "checked, without effect: each micro-batch looks for partitions",
    }
)
_MILLISECONDS: Final = re.compile(r"-1|0*[1-9][0-9]*")


def check_options_of_spark(options: Mapping[str, str]) -> None:
    """Warn of options without a meaning here. `options` has names in lower case. Raises OptionError for a value that
    Spark's own source refuses.
    """
    for name in PATHS:
        if name in options:
            _log.warning(
                "option '%s' is ignored: a topic has no path. Topics are named by 'subscribe', 'subscribePattern' or "
                "'assign' of a source, and by 'topic' of a sink", name,
            )  # fmt: skip
    lifetime = options.get(METADATA_TTL, "-1").strip()
    if not _MILLISECONDS.fullmatch(lifetime):
        raise OptionError(f"option '{METADATA_TTL}' must be -1 or a positive number of milliseconds, got {lifetime!r}")
