"""How the JVMs of Spark are started in tests, which need them for seconds: without Java's second compiler, whose work
would not pay off, and with the classes of an earlier Spark (`spark_classes.py`) if `tests/parts.py` had them archived.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: Names the file of the archive, which may not be there yet.
ARCHIVE_VARIABLE: Final = "PYLOGD_TEST_SPARK_CLASSES"
#: Of the JVM that composes the command of the JVM with Spark.
LAUNCHER_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: A JVM that can't use the archive would say so in the output of the command under test.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


def driver_options() -> str:
    """Return the value of SPARK_SUBMIT_OPTS, Spark's variable for options of the driver's JVM."""
    archive = os.environ.get(ARCHIVE_VARIABLE)
    if archive is None or not Path(archive).exists():
        return LAUNCHER_OPTIONS
    return f"{LAUNCHER_OPTIONS} -XX:SharedArchiveFile={archive} {_QUIET}"
