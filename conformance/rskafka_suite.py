"""rskafka's own integration tests, from its crate: a Rust client that was written without librdkafka.

The crate is copied out of cargo's registry, because cargo runs only tests of packages of a workspace. It pins a Rust of
its own and a version of a dependency that newer compilers refuse: both are lifted. Tests that need what is not there
(a Java machine in the process, a SOCKS5 proxy, a listener with SASL) return at once, and count as skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from conformance import brokers, checks
from conformance.checks import CACHE, FAILED, HERE, PASSED, SKIPPED, Check, Missing

_MANIFEST = HERE / "rskafka" / "Cargo.toml"
_BUILD_SECONDS = 1800.0
_SECONDS = 600.0
_OUTCOMES = {"ok": PASSED, "FAILED": FAILED, "ignored": SKIPPED}
#: What a test's name says of it -> what it needs that is not there.
_NEEDS = {"java": "needs a Java machine in its process", "socks5": "needs a SOCKS5 proxy", "sasl": "needs SASL"}
_TESTS = ("client", "consumer", "produce_consume", "producer")


def version() -> str:
    """Return the pinned version. Raises Missing."""
    found = re.search(r'^rskafka = "=(.+)"$', _MANIFEST.read_text(), re.MULTILINE)
    if found is None:
        raise Missing(f"{_MANIFEST.name} does not pin rskafka")
    return found[1]


def suite(kind: str, folder: Path) -> list[Check]:
    """Run the tests of each file, all against one broker. Each of them is a check."""
    cargo, source = _prepare()
    # Its tests expect an error for a topic that does not exist.
    with brokers.running(kind, folder, {"auto.create.topics.enable": "false"}) as address:
        return _run(cargo, source, address)


def _run(cargo: str, source: Path, address: str) -> list[Check]:
    environment = {
        **_toolchain(), "RUST_BACKTRACE": "0", "TEST_INTEGRATION": "1", "TEST_BROKER_IMPL": "kafka",
        "KAFKA_CONNECT": address, "CARGO_TARGET_DIR": str(CACHE / "rskafka-target"),
    }  # fmt: skip
    built = checks.run(
        [cargo, "test", "--tests", "--no-run"], seconds=_BUILD_SECONDS, folder=source, environment=environment
    )
    if built.returncode:
        raise Missing(f"rskafka's tests can't be built: {checks.last_line(built.stderr)}")
    found: list[Check] = []
    with (CACHE / "rskafka.log").open("w") as log:
        for name in _TESTS:
            done = checks.run(
                [cargo, "test", "--no-fail-fast", "--test", name], seconds=_SECONDS, folder=source,
                environment=environment,
            )  # fmt: skip
            log.write(done.stdout + done.stderr)
            found += _parse(name, done.stdout) or [
                Check(f"{name} runs to its end", FAILED, checks.last_line(done.stderr))
            ]
    return found


def _parse(file: str, output: str) -> list[Check]:
    """Return the checks of what `cargo test` printed."""
    found = []
    for name, outcome in re.findall(r"^test (\S+) \.\.\. (ok|FAILED|ignored)", output, re.MULTILINE):
        lacks = next((need for word, need in _NEEDS.items() if word in name), "")
        why = _panic(name, output) if outcome == "FAILED" else lacks
        found.append(Check(f"{file}: {name}", SKIPPED if lacks and outcome == "ok" else _OUTCOMES[outcome], why))
    return found


def _panic(name: str, output: str) -> str:
    """Return what a failed test said, in one line."""
    said = re.search(rf"^---- {re.escape(name)} stdout ----\n(.*?)(?=^---- |^failures:)", output, re.M | re.S)
    return checks.last_line(said[1].split("\nnote:")[0]) if said else "failed"


def _prepare() -> tuple[str, Path]:
    """Return cargo's path, and a folder with the crate. Raises Missing."""
    cargo = checks.tool("cargo", "cargo")
    folder, source = CACHE / "rskafka", CACHE / "rskafka-source"  # apart, or cargo takes both for one workspace
    if (source / ".ready").exists():
        return cargo, source
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(source, ignore_errors=True)
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "lib.rs").touch()
    shutil.copy(_MANIFEST, folder)
    asked = checks.run([cargo, "metadata", "--format-version=1"], seconds=600, folder=folder, environment=_toolchain())
    if asked.returncode:
        raise Missing(f"rskafka is not available: {checks.last_line(asked.stderr)}")
    packages = json.loads(asked.stdout)["packages"]
    [manifest] = [package["manifest_path"] for package in packages if package["name"] == "rskafka"]
    shutil.copytree(Path(manifest).parent, source)
    (source / "rust-toolchain.toml").unlink(missing_ok=True)
    checks.fetched([cargo, "update", "-p", "rsasl"], "rsasl", folder=source, environment=_toolchain())
    (source / ".ready").touch()
    return cargo, source


def _toolchain() -> dict[str, str]:
    """Return the variable that has rustup use the machine's own Rust, whatever a package pins."""
    return {"RUSTUP_TOOLCHAIN": os.environ.get("RUSTUP_TOOLCHAIN", "stable")}
