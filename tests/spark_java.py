"""How the JVMs of Spark are started in tests, which need them for seconds: without Java's second compiler, whose work
would not pay off, and with the classes of an earlier Spark (`spark_classes.py`) if `tests/parts.py` had them archived.

Spark's Python processes import pyspark from site-packages, where it is compiled. By default they take it from the
sources in pyspark.zip of Spark's home, and each process compiles those again, for a second of processor time.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

#: Names the file of the archive, which may not be there yet.
ARCHIVE_VARIABLE: Final = "PYLOGD_TEST_SPARK_CLASSES"
#: Of the JVM that composes the command of the JVM with Spark.
LAUNCHER_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Of the JVM with Spark. With one compiler a JVM has room for 48 MB of compiled code only, and Spark ends when this is
#: full: the session that all tests share got there. 240 MB is the size with both compilers.
_DRIVER_OPTIONS: Final = f"{LAUNCHER_OPTIONS} -XX:ReservedCodeCacheSize=240m"
#: A JVM that can't use the archive would say so in the output of the command under test.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


def driver_options() -> str:
    """Return the value of SPARK_SUBMIT_OPTS, Spark's variable for options of the driver's JVM."""
    archive = os.environ.get(ARCHIVE_VARIABLE)
    if archive is None or not Path(archive).exists():
        return _DRIVER_OPTIONS
    return f"{_DRIVER_OPTIONS} -XX:SharedArchiveFile={archive} {_QUIET}"


@functools.cache
def spark_home() -> str | None:
    """Return a value of SPARK_HOME: links to all of the installed Spark but pyspark.zip. None without Spark.

    It is beside the archive of classes, if there is to be one, which is good for one home only; otherwise it is removed
    when this process ends.
    """
    archive = os.environ.get(ARCHIVE_VARIABLE)
    if archive is not None:
        return link_spark(Path(archive).parent)
    folder = tempfile.mkdtemp(prefix="pylogd-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return link_spark(Path(folder))


def link_spark(folder: Path) -> str | None:
    """Have such a home in a folder, and return its path. Several processes may do this at the same time."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    home = folder / "spark-home"
    home.mkdir(exist_ok=True)
    for each in Path(found.origin).parent.iterdir():
        if each.name != "python":  # the folder of pyspark.zip
            with contextlib.suppress(FileExistsError):
                (home / each.name).symlink_to(each)
    return str(home)
