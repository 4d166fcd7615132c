"""Build the container image, measure it, run it, and write CONTAINER.md: `make container`.

Strategy: no registry of images is asked. The base image is made from Debian's packages with mmdebstrap, the wheels come
from a folder. buildah builds by packages/container/Containerfile, podman and runc run the image, with a read-only root
file system. All storage is in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from pylogd.base.ports import free_ports
from tests.packages.roots import CHECKOUT, CommandFailed, debian_root, require, run, wheels
from tests.pages import circumstances, write_page

IMAGE: Final = "localhost/pylogd"
BASE: Final = "localhost/debian:bookworm-slim"
MOST_BYTES: Final = 100_000_000
_PATIENCE_SECONDS: Final = 60.0


class Images:
    """Images and containers in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._storage = [
            "--root",
            str(folder / "store"),
            "--runroot",
            str(folder / "run"),
            "--storage-driver",
            "overlay",
        ]

    def buildah(self, *words: str | Path, seconds: float = 1200) -> str:
        return run(["buildah", *self._storage, *words], seconds=seconds, environment={"BUILDAH_ISOLATION": "chroot"})

    def podman(self, *words: str | Path, given: str = "", errors: bool = False) -> str:
        runtime = ["--runtime", shutil.which("runc") or "runc", "--cgroup-manager", "cgroupfs"]
        return run(["podman", *self._storage, *runtime, *words], given=given, seconds=120, errors=errors)

    def import_base(self) -> None:
        """Make the base image."""
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", container, debian_root("slim", (), slim=True), "/")
        self.buildah("commit", "--quiet", "--rm", container, BASE)

    def build(self) -> float:
        """Build the image. Return how many seconds that took."""
        context = self._folder / "context"
        shutil.copytree(wheels(), context / "dist")
        started = time.monotonic()
        self.buildah(
            "build", "--format", "docker", "--network", "host", "--pull-never", "--build-arg", f"BASE={BASE}",
            "--build-arg", "PIP_NO_INDEX=1", "--tag", IMAGE, "--file",
            CHECKOUT / "packages" / "container" / "Containerfile", context,
        )  # fmt: skip
        return time.monotonic() - started

    def compressed_bytes(self) -> int:
        """Return the size of the image as registries keep it: gzipped layers."""
        target = self._folder / "image.tar"
        self.buildah("push", IMAGE, f"oci-archive:{target}")
        return target.stat().st_size


class Running:
    """A container that runs a broker. Every check raises if it does not hold."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self.port, self._metrics = free_ports(2)
        broker = ["broker", "--data", "/var/lib/pylogd", "--listen", f"127.0.0.1:{self.port}", "--log-format", "json"]
        self.name = images.podman(
            "run", "--detach", "--network", "host", "--read-only", "--no-healthcheck", "--ulimit", "nofile=4096:4096",
            "--ulimit", "nproc=4096:4096", IMAGE, *broker, "--set", f"metrics.listener=127.0.0.1:{self._metrics}",
        ).strip()  # fmt: skip

    def run(self, *words: str, given: str = "") -> str:
        return self._images.podman("exec", "--interactive", self.name, *words, given=given)

    def wait_until_healthy(self) -> float:
        """Ask as the image's health check does, until it is. Return the seconds."""
        (check,) = [word for word in health_check(self._images) if word.startswith("import")]
        started = time.monotonic()
        while True:
            try:
                self.run("python3", "-c", check.replace(":9404/", f":{self._metrics}/"))
                return time.monotonic() - started
            except CommandFailed:
                if time.monotonic() - started > _PATIENCE_SECONDS:
                    raise
                time.sleep(0.2)

    def stop(self) -> int:
        """Stop it as an engine does. Return the exit status."""
        self._images.podman("stop", "--time", "30", self.name)
        return int(self._images.podman("inspect", self.name, "--format", "{{.State.ExitCode}}"))

    def log(self) -> list[dict[str, Any]]:
        text = self._images.podman("logs", self.name, errors=True)
        return [json.loads(line) for line in text.splitlines()]

    def remove(self) -> None:
        self._images.podman("rm", "--force", "--volumes", self.name)


def health_check(images: Images) -> list[str]:
    found: list[str] = json.loads(images.podman("inspect", IMAGE))[0]["Healthcheck"]["Test"]
    return found


def check_container(images: Images) -> list[str]:
    """Run a container. Return a line for each thing that was shown."""
    running = Running(images)
    try:
        seconds = running.wait_until_healthy()
        shown = [f"- healthy {seconds:.1f} s after its start, by the check of the image"]
        ids = running.run("id").strip()
        if "uid=10001(pylogd)" not in ids:
            raise CommandFailed(f"it runs as {ids}")
        shown.append(f"- runs as `{ids}`, with a read-only root file system")
        server = f"127.0.0.1:{running.port}"
        running.run("pylogd", "topics", "create", "demo", "-b", server)
        running.run("pylogd", "produce", "demo", "-b", server, given="one\ntwo\n")
        read = running.run("pylogd", "consume", "demo", "--until-end", "-b", server)
        if sorted(read.split()) != ["one", "two"]:
            raise CommandFailed(f"it returned {read!r}")
        shown.append("- two records produced and consumed with its own command line")
        running.run("pylogd", "cluster", "health", "-b", server)
        shown.append("- `pylogd cluster health` ends with 0")
        status = running.stop()
        if status != 0 or running.log()[-1]["message"] != "Stopped":
            raise CommandFailed(f"exit status {status}, {running.log()[-3:]}")
        shown.append("- SIGTERM ends it cleanly, exit status 0; every line of its log is JSON")
        return shown
    finally:
        running.remove()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="the page to write")
    options = parser.parse_args()
    require("buildah", "podman", "runc", "mmdebstrap")
    with tempfile.TemporaryDirectory(prefix="pylogd-images-") as folder:
        images = Images(Path(folder))
        images.import_base()
        seconds = images.build()
        size = images.compressed_bytes()
        shown = check_container(images)
    verdict = "as required" if size <= MOST_BYTES else "too large"
    lines = [
        "# The container image", "", "Written by `make container`.", "", circumstances(), "",
        f"- {size / 1e6:.1f} MB compressed, all layers; at most {MOST_BYTES / 1e6:.0f} MB: {verdict}",
        f"- built in {seconds:.0f} s by buildah, on a base image made from Debian's packages",
        *shown,
    ]  # fmt: skip
    print("\n".join(lines))
    if options.results:
        write_page(options.results, lines)
    return 0 if size <= MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
