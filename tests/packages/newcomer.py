"""Try the checkout on new machines, and write NEWCOMER.md: `make newcomer`.

Strategy: a root folder of Debian, with the packages that README.md names and no others, is a new machine. A second one
also has what developers have: a C compiler, git and some tools. The files of the checkout are copied there, and what
README.md and CONTRIBUTING.md say is typed: the two commands, then `make test`. Each line runs in namespaces of its own,
so that nothing of it is left when it ends.

Only the way to PyPI and Debian is carried over from this machine: certificates, proxies, and the configuration of pip
and apt. Nothing of it is written into the checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.packages.first_minutes import block, wait_for
from tests.packages.roots import CACHE, CHECKOUT, CommandFailed, debian_root, require, run, write_hosts
from tests.pages import circumstances, write_page

#: What README.md says that pylogd needs. pip needs the certificates.
README_PACKAGES: Final = ("python3", "python3-venv", "make", "ca-certificates")
MACHINES: Final[Mapping[str, tuple[str, ...]]] = {
    "README": README_PACKAGES,
    "developer": (*README_PACKAGES, "build-essential", "python3-dev", "git", "openssl", "iproute2", "procps", "curl"),
}
STEPS: Final = ("install", "demo", "broker", "test")
_HOURS: Final = 3
_BROKER_SECONDS: Final = 1200.0
_FOLDER: Final = "/root/pylogd"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BUNDLE: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_PIP_FILES: Final = ("etc/pip.conf", "root/.config/pip/pip.conf", "root/.pip/pip.conf")
_PROXIES: Final = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
#: Makes the mounts that programs expect in the root folder $0, makes it the root, and runs a line there. With a mere
#: `chroot` no process may make a namespace of users.
_IN_ROOT: Final = (
    'mount --bind "$0" "$0" && cd "$0" && mount -t proc proc proc && mount --rbind /sys sys && '
    "mount --rbind /dev dev && mount -t tmpfs tmpfs run && pivot_root . mnt && "
    'exec chroot . sh -c \'umount -l /mnt && exec "$@"\' sh "$@"'
)
_ENDED: Final = (0, 128 + signal.SIGINT)


@dataclass
class Outcome:
    """A line that was typed. skipped: how many tests, by reason."""

    machine: str
    line: str
    seconds: float
    text: str
    failed: bool
    skipped: Mapping[str, int] = field(default_factory=dict)


class Machine:
    """A new machine in a folder."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self._root = root

    def install(self, tar: Path, more: Iterable[str] = ()) -> None:
        """Unpack Debian, with what reaches PyPI and Debian from here, and more packages. Copy the checkout."""
        self._root.mkdir(parents=True)
        run(["tar", "-xf", tar, "-C", self._root])
        shutil.copy("/etc/resolv.conf", self._root / "etc" / "resolv.conf")
        write_hosts(self._root)
        with (self._root / "etc" / "hosts").open("a") as hosts:
            hosts.write(f"127.0.1.1 {os.uname().nodename}\n")  # as Debian's installer does
        self._carry_over()
        if names := sorted(more):
            self._add(names)
        self.copy_checkout()

    def _carry_over(self) -> None:
        for name in _PIP_FILES:
            if (given := Path("/") / name).is_file():
                _copy(given, self._root / name)
        apt, theirs = Path("/etc/apt"), self._root / "etc" / "apt"
        sources = [path for path in (apt / "sources.list", *(apt / "sources.list.d").glob("*")) if path.is_file()]
        (theirs / "sources.list").unlink(missing_ok=True)
        options = [path for path in (apt / "apt.conf.d").glob("*") if "Acquire::" in path.read_text()]
        logins = [apt / "auth.conf", *(apt / "auth.conf.d").glob("*")]
        for path in (*sources, *options, *(path for path in logins if path.is_file())):
            _copy(path, theirs / path.relative_to(apt))
        known = {_bare(one) for one in _CERTIFICATE.findall((self._root / str(_BUNDLE)[1:]).read_text())}
        own = self._root / "usr" / "local" / "share" / "ca-certificates"
        for number, one in enumerate(_CERTIFICATE.findall(_BUNDLE.read_text())):
            if _bare(one) not in known:
                (own / f"carried-over-{number}.crt").write_text(one + "\n")
        run(["chroot", self._root, "update-ca-certificates"])

    def _add(self, names: Sequence[str]) -> None:
        """Install those of the packages that Debian has."""
        self.run("apt-get update")
        offered = set(self.run("apt-cache pkgnames").split())
        missing = [name for name in names if name not in offered]
        if missing:
            print(f"{self.name}: Debian does not have {' '.join(missing)}", flush=True)
        self.run(
            f"DEBIAN_FRONTEND=noninteractive apt-get install -y {' '.join(one for one in names if one in offered)}"
        )

    def copy_checkout(self) -> None:
        """Copy the files of the checkout that git knows, as they are."""
        target = self._root / _FOLDER[1:]
        target.mkdir(parents=True, exist_ok=True)
        listed = run(["git", "ls-files", "-z"], folder=CHECKOUT)
        there = "\0".join(name for name in listed.split("\0") if name and (CHECKOUT / name).exists())
        run(["tar", "--null", "-T", "-", "-cf", target / "all.tar"], folder=CHECKOUT, given=there)
        run(["tar", "-xf", target / "all.tar", "-C", target])
        (target / "all.tar").unlink()

    def command(self, line: str) -> list[str]:
        """Return the command that runs a line of a shell in the copy of the checkout."""
        own = {"HOME": "/root", "LC_ALL": "C.UTF-8", "TERM": "dumb", "PATH": _PATH}
        ways = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name in _PROXIES}
        ways.pop("PIP_FIND_LINKS", None)  # a folder of this machine
        variables = [f"{name}={value}" for name, value in {**ways, **own}.items()]
        script = f"cd {_FOLDER} 2>/dev/null; {line}"
        return [
            "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _IN_ROOT, str(self._root),
            "env", "-i", *variables, "sh", "-c", script,
        ]  # fmt: skip

    def run(self, line: str) -> str:
        """Run a line until it ends. Return its output. Raises CommandFailed."""
        return run(self.command(line), seconds=_HOURS * 3600, errors=True)

    def type(self, line: str) -> Outcome:
        """Run a line, show its output, and return what came of it."""
        print(f"\n{self.name}$ {line}", flush=True)
        started, said = time.monotonic(), []
        with subprocess.Popen(
            self.command(line), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for text in process.stdout:
                print(text, end="", flush=True)
                said.append(text)
        seconds = time.monotonic() - started
        return Outcome(self.name, line, seconds, _summary(said), process.returncode != 0, _skipped(said))

    def serve(self, line: str, until: str) -> Outcome:
        """Run a line that runs until Ctrl-C, and press that once its output contains `until`."""
        print(f"\n{self.name}$ {line}", flush=True)
        started = time.monotonic()
        process = subprocess.Popen(
            self.command(line), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            said = wait_for(process.stdout, until, _BROKER_SECONDS)
            seconds = time.monotonic() - started
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait(60)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        print(said, flush=True)
        failed = until not in said or code not in _ENDED
        return Outcome(self.name, line, seconds, f"until `{until}`; exit status {code} after Ctrl-C", failed)


def _copy(given: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(given, to)


def _bare(certificate: str) -> str:
    return re.sub(r"\s", "", certificate)


def _summary(lines: Sequence[str]) -> str:
    """Return the last lines that say how tests ended, or else the last line."""
    ended = [line.strip(" =\n") for line in lines if re.search(r"\d+ (passed|failed|error).* in [\d.]+s", line)]
    return "; ".join(ended) or next((line.strip() for line in reversed(lines) if line[:1].strip()), "")


def _skipped(lines: Iterable[str]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for line in lines:
        if named := re.match(r"SKIPPED \[(\d+)\] (\S+?)(?::\d+)?: (.*)", line):
            found[f"{named[2]}: {named[3]}"] += int(named[1])
    return dict(found)


def packages_of(path: Path) -> list[str]:
    """Return the names in a list of Debian packages: one a line, alone or as `apt NAME VERSION`."""
    rows = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    names = [row[1] if row[0] == "apt" else row[0] for row in rows if row and (len(row) == 1 or row[0] == "apt")]
    return [name.partition(":")[0] for name in names]


def try_machine(machine: Machine, steps: Sequence[str], tests: str) -> Iterator[Outcome]:
    """Type the steps. Yield what came of each."""
    demo, broker = _blocks("Two commands")
    if "install" in steps:
        yield machine.type("make install")
    if "demo" in steps:
        yield machine.type(demo)
    if "broker" in steps:
        venv = block("Install")[0]
        yield machine.serve(f"{venv} && {broker}", "listens on")
    if "test" in steps:
        yield machine.type(f"make test PYTEST_ARGS={shlex.quote(tests)}" if tests else "make test")


def _blocks(title: str) -> list[str]:
    """Return the lines of all shell blocks below a heading of the README."""
    below = (CHECKOUT / "README.md").read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [line for found in re.findall(r"```sh\n(.*?)```", below, re.DOTALL) for line in found.splitlines()]


def page(tried: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the page of results, of the last run of each machine."""
    outcomes = [Outcome(**one) for run in tried.values() for one in run["outcomes"]]
    failed = [one for one in outcomes if one.failed]
    verdict = "Everything ended well." if not failed else f"{len(failed)} STEPS FAILED."
    lines = [
        "# A new machine", "", "Written by `make newcomer`.", "",
        "What README.md and CONTRIBUTING.md say, typed by a program on new machines: root folders of Debian with these "
        f"packages and what they need. {verdict}", "",
        *(f"- {name}: {' '.join(run['packages'])}. {run['circumstances']}" for name, run in tried.items()), "",
        "| machine | step | seconds | outcome |", "| --- | --- | --- | --- |",
    ]  # fmt: skip
    for one in outcomes:
        cells = one.machine, f"`{one.line}`", f"{one.seconds:.0f}", f"{'FAILED: ' if one.failed else ''}{one.text}"
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    skipped = [(one.machine, reason, count) for one in outcomes for reason, count in sorted(one.skipped.items())]
    if skipped:
        lines += ["", "Tests that were skipped:", "", "| machine | tests | where, and why |", "| --- | --- | --- |"]
        lines += [f"| {name} | {count} | {reason.replace('|', chr(92) + '|')} |" for name, reason, count in skipped]
    return lines


def _command(line: str) -> str:
    """Return a line without the tests that it names."""
    return line.partition(" PYTEST_ARGS")[0]


def _kept(machine: str) -> Path:
    """Return the file with the outcomes of a machine's last run."""
    return CACHE / f"newcomer-{machine}.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="the page to write")
    parser.add_argument("--machine", choices=MACHINES, nargs="+", default=list(MACHINES))
    parser.add_argument("--packages", type=Path, help="a list of packages, of which the machines have those in Debian")
    parser.add_argument("--steps", choices=STEPS, nargs="+", default=list(STEPS), help="what is typed (all)")
    parser.add_argument("--tests", default="", help="the tests to run, as pytest's arguments (all)")
    parser.add_argument("--folder", type=Path, help="where the machines stay, and a later run goes on with them")
    options = parser.parse_args()
    # Shells ignore SIGINT for what they run in the background, and what is typed here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    require("mmdebstrap", "git", "unshare")
    more = packages_of(options.packages) if options.packages else []
    failed = False
    with tempfile.TemporaryDirectory(prefix="pylogd-newcomer-") as temporary:
        for name in options.machine:
            machine = Machine(name, (options.folder or Path(temporary)) / name)
            run_of: dict[str, Any] = {"packages": [*MACHINES[name], *more], "outcomes": []}
            if options.folder and (options.folder / name).exists():
                machine.copy_checkout()
                if _kept(name).exists():
                    run_of["outcomes"] = json.loads(_kept(name).read_text())["outcomes"]
            else:
                machine.install(debian_root(f"newcomer-{name}", MACHINES[name]), more)
            run_of["circumstances"] = circumstances()
            for one in try_machine(machine, options.steps, options.tests):
                failed = failed or one.failed
                earlier = [was for was in run_of["outcomes"] if _command(was["line"]) != _command(one.line)]
                run_of["outcomes"] = [*earlier, asdict(one)]
                _kept(name).write_text(json.dumps(run_of))
                lines = page({each: json.loads(_kept(each).read_text()) for each in MACHINES if _kept(each).exists()})
                if options.results:
                    write_page(options.results, lines)
    print("\n".join(["", *lines]))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CommandFailed as failed:
        sys.exit(str(failed))
