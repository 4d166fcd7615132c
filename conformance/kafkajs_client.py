"""kafkajs, from npm. It reads by consumer groups only."""

from __future__ import annotations

import json
import shutil

from conformance import checks
from conformance.checks import CACHE, HERE, Check


def version() -> str:
    """The pinned version."""
    return str(json.loads((HERE / "kafkajs" / "package.json").read_text())["dependencies"]["kafkajs"])


def suite(address: str) -> list[Check]:
    """Runs conformance/kafkajs/checks.js."""
    node, npm = checks.tool("node", "nodejs"), checks.tool("npm", "npm")
    folder = CACHE / "kafkajs"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "checks.js"):
        shutil.copy(HERE / "kafkajs" / name, folder / name)
    if not (folder / "node_modules" / "kafkajs").is_dir():
        checks.fetched([npm, "install", "--no-audit", "--no-fund", "--silent"], "kafkajs", folder=folder)
    return checks.program([node, "checks.js", address], seconds=300, folder=folder)
