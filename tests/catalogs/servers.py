"""Real catalogs of Iceberg tables: Apache Iceberg's REST catalog, and Hive's metastore.

The REST catalog comes from Maven Central at the first use. The metastore, of Hive 2.3, is among the jars of Spark.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway  # type: ignore[import-untyped]

from conformance import checks
from pylogd.base.ports import free_ports

HERE = Path(__file__).resolve().parent
JARS = HERE.parents[1] / ".cache" / "catalogs" / "jars"
SPARK = Path(pyspark.__file__).parent / "jars"
_HADOOP = ("hadoop-client-api", "hadoop-client-runtime", "commons-logging")
_START_SECONDS = 120.0
_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # starts faster
Properties = dict[str, str]


def jars() -> list[Path]:
    """Return the jars of the REST catalog. Raises checks.Missing if they can't be had."""
    if not list(JARS.glob("iceberg-open-api-*.jar")):
        shutil.rmtree(JARS, ignore_errors=True)
        maven = checks.tool("mvn", "maven")
        command = [maven, "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
        checks.fetched([*command, f"-DoutputDirectory={JARS}"], "Iceberg's REST catalog from Maven Central")
    return [*JARS.glob("*.jar"), *(path for path in SPARK.glob("*.jar") if path.name.startswith(_HADOOP))]


@contextmanager
def rest_catalog(folder: Path) -> Iterator[Properties]:
    """Run Iceberg's REST catalog, with its data in a folder. Yield pyiceberg's properties of it."""
    (port,) = free_ports(1)
    folder.mkdir(parents=True, exist_ok=True)
    given = {
        "CATALOG_WAREHOUSE": str(folder / "warehouse"), "CATALOG_REST_PORT": str(port),
        "CATALOG_URI": f"jdbc:sqlite:{folder / 'catalog.db'}",
    }  # fmt: skip
    command = [
        checks.tool("java", "openjdk-17-jre-headless"), "-Xmx256m", *_JAVA, "-cp", os.pathsep.join(map(str, jars())),
        "org.apache.iceberg.rest.RESTCatalogServer",
    ]  # fmt: skip
    with (folder / "rest.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={**os.environ, **given})
        try:
            _wait(port, lambda: process.poll() is None, folder / "rest.log")
            yield {"type": "rest", "uri": f"http://127.0.0.1:{port}"}
        finally:
            process.kill()
            process.wait()


@contextmanager
def hive_metastore(folder: Path) -> Iterator[Properties]:
    """Run Hive's metastore on Derby, with its data in a folder. Yield pyiceberg's properties of it."""
    (port,) = free_ports(1)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "hive.log").open("wb") as log:
        gateway_port, process = launch_gateway(
            classpath=str(SPARK / "*"), javaopts=["-Xmx400m", *_JAVA, f"-Dderby.system.home={folder}"],
            die_on_exit=True, redirect_stdout=log, redirect_stderr=log, return_proc=True,
        )  # fmt: skip
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=gateway_port))
        try:
            thread = threading.Thread(target=_serve, args=(gateway, folder, port), name="hive", daemon=True)
            thread.start()
            _wait(port, thread.is_alive, folder / "hive.log")
            yield {"type": "hive", "uri": f"thrift://127.0.0.1:{port}", "hive.hive2-compatible": "true"}
        finally:
            process.stdin.close()
            process.kill()
            process.wait()
            gateway.close()


def _serve(gateway: Any, folder: Path, port: int) -> None:
    """Make the tables of the metastore and of its locks, and serve until the JVM is killed."""
    hadoop = gateway.jvm.org.apache.hadoop
    settings = hadoop.hive.conf.HiveConf()
    for name, value in {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder / 'db'};create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.connectionPoolingType": "HikariCP",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": str(folder / "warehouse"),
    }.items():
        settings.set(name, value)
    try:
        hadoop.hive.metastore.txn.TxnDbUtil.prepDb(settings)
        bridge = hadoop.hive.shims.ShimLoader.getHadoopThriftAuthBridge()
        hadoop.hive.metastore.HiveMetaStore.startMetaStore(port, bridge, settings)
    except OSError:  # it was killed: py4j's errors of the network are OSErrors
        return


def _wait(port: int, is_alive: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if not is_alive() or time.monotonic() > deadline:
                raise RuntimeError(f"the catalog did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.05)
