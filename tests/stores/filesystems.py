"""The file systems on which lakes are tried: local disks, HDFS, and S3, with Hadoop's clients and without."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
import s3fs  # type: ignore[import-untyped]

from conformance import checks
from pylogd.base.ports import free_ports
from pylogd.lake.spark.hadoop import HadoopFiles
from pylogd.lake.tables.parquet.files import Files
from pylogd.lake.tables.parquet.hdfs import HdfsFiles
from pylogd.lake.tables.parquet.local import LocalFiles
from pylogd.lake.tables.parquet.remote import FsspecFiles
from tests.fakes import s3
from tests.fakes.s3 import S3Server
from tests.sparks import running_spark

HERE = Path(__file__).resolve().parent
JARS = HERE.parent.parent / ".cache" / "stores" / "jars"
_SPARK = Path(pyspark.__file__).parent / "jars"
#: Jars that only the small HDFS needs.
_MINICLUSTER = (
    "hadoop-client-minicluster", "junit", "opentest4j", "apiguardian", "assertj", "mockito", "byte-buddy", "objenesis",
)  # fmt: skip
#: Without these a folder of jars is incomplete, and is made anew.
_NEEDED = ("hadoop-aws", "analyticsaccelerator-s3")
_START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system, and the client that a process uses for it.

    client: "python" (without a JVM) or "hadoop". root: a directory, as that client names it. settings: of Spark.
    """

    name: str
    client: str
    root: str
    settings: Mapping[str, str] = field(default_factory=dict)
    endpoint: str = ""


@contextmanager
def opened(place: FileSystem) -> Iterator[Files]:
    """Yield the files of a place, with a JVM if it needs one."""
    if place.client == "python" and place.root.startswith("hdfs://"):
        yield HdfsFiles(place.root, {})
        return
    if place.client == "python":
        if not place.endpoint:
            yield LocalFiles(Path(place.root))
            return
        filesystem = s3fs.S3FileSystem(
            key=s3.KEY, secret=s3.SECRET, endpoint_url=place.endpoint, skip_instance_cache=True,
            client_kwargs={"region_name": s3.REGION},
        )  # fmt: skip
        yield FsspecFiles(filesystem, place.root)
        return
    settings = {"spark.driver.memory": "512m", **place.settings}
    with (
        tempfile.TemporaryDirectory(prefix="pylogd-stores-") as folder,
        running_spark(Path(folder), settings, "local[1]") as spark,
    ):
        yield HadoopFiles(spark, place.root)


def jars() -> list[Path]:
    """Return the jars of S3A and of a small HDFS, which are downloaded at the first use."""
    if not all(list(JARS.glob(f"{name}-*.jar")) for name in _NEEDED):
        shutil.rmtree(JARS, ignore_errors=True)
        maven = checks.tool("mvn", "maven")
        command = [maven, "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
        checks.fetched([*command, f"-DoutputDirectory={JARS}"], "hadoop-aws and the minicluster from Maven Central")
    return sorted(JARS.glob("*.jar"))


def s3a_settings(server: S3Server) -> dict[str, str]:
    """Return the settings of Spark for S3A on a server."""
    hadoop = {
        "endpoint": server.address,
        "endpoint.region": s3.REGION,
        "access.key": s3.KEY,
        "secret.key": s3.SECRET,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "bucket.probe": "0",
    }
    provided = {path.name for path in _SPARK.glob("*.jar")}
    others = [path for path in jars() if path.name not in provided and not path.name.startswith(_MINICLUSTER)]
    ours = [path for path in others if not path.name.startswith(("slf4j", "commons-logging", "commons-codec"))]
    return {
        "spark.jars": ",".join(map(str, ours)),
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in hadoop.items()},
    }


@contextmanager
def running_hdfs(folder: Path) -> Iterator[str]:
    """Run HDFS with one data node in a JVM of its own. Yield its URL."""
    (port,) = free_ports(1)
    minicluster = [path for path in jars() if path.name.startswith(_MINICLUSTER)]
    command = [
        checks.tool("java", "openjdk-17-jre-headless"), "-Xmx400m",
        f"-Dtest.build.data={folder}", f"-Dhadoop.tmp.dir={folder}",
        "-cp", os.pathsep.join([str(_SPARK / "*"), *map(str, minicluster)]),
        "org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-datanodes", "1", "-nnport", str(port),
        "-writeDetails", str(folder / "details.json"),
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "hdfs.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not (folder / "details.json").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"HDFS did not start:\n{(folder / 'hdfs.log').read_text()[-3000:]}")
                time.sleep(0.2)
            yield f"hdfs://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()
