"""Two Go clients, franz-go and sarama, through the Go module proxy."""

from __future__ import annotations

import re
import shutil

from conformance import checks
from conformance.checks import CACHE, HERE, Check


def version() -> str:
    """The pinned versions."""
    found = re.findall(r"^\s*github.com/(\w+/[\w-]+) (v\S+)$", (HERE / "go" / "go.mod").read_text(), re.MULTILINE)
    return ", ".join(f"{name.split('/')[1]} {number}" for name, number in found if name.split("/")[1] in _CLIENTS)


_CLIENTS = ("franz-go", "sarama")


def build() -> str:
    """Build conformance/go. Return the path of the program. Raises Missing."""
    go = checks.tool("go", "golang-go")
    folder = CACHE / "go"
    shutil.rmtree(folder / "source", ignore_errors=True)
    shutil.copytree(HERE / "go", folder / "source")
    program = str(folder / "conformance")
    command = [go, "build", "-o", program, "."]
    checks.fetched(command, "the Go clients", folder=folder / "source", environment=environment())
    return program


def environment() -> dict[str, str]:
    """Return the variables with which `go` is run: it keeps what it downloads in the cache."""
    return {"GOPATH": str(CACHE / "go" / "path"), "GOFLAGS": "-modcacherw -buildvcs=false"}


def suite(address: str) -> list[Check]:
    """Build and run conformance/go."""
    return checks.program([build(), address], seconds=300)
