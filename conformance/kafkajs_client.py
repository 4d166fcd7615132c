"""kafkajs, from npm. It reads by consumer groups only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from conformance import checks
from conformance.checks import CACHE, HERE, Check


def version() -> str:
    """The pinned version."""
    return str(json.loads((HERE / "kafkajs" / "package.json").read_text())["dependencies"]["kafkajs"])


def install() -> tuple[str, Path]:
    """Return node's path, and the folder with kafkajs and the programs. Raises Missing."""
    node, npm = checks.tool("node", "nodejs"), checks.tool("npm", "npm")
    folder = CACHE / "kafkajs"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "checks.js", "secure.js"):
        shutil.copy(HERE / "kafkajs" / name, folder / name)
    if not (folder / "node_modules" / "kafkajs").is_dir():
        checks.fetched([npm, "install", "--no-audit", "--no-fund", "--silent"], "kafkajs", folder=folder)
    return node, folder


def suite(address: str) -> list[Check]:
    """Run conformance/kafkajs/checks.js."""
    node, folder = install()
    return checks.program([node, "checks.js", address], seconds=300, folder=folder)
