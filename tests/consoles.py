"""The console as a process, and a browser without a window: cookies, forms and redirects."""

from __future__ import annotations

import http.cookiejar
import re
import select
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

from pylogd.local.broker import pylogd_command
from pylogd.local.launch import bound

PATIENCE: Final = 120.0


class ConsoleProcess:
    """A running `pylogd console`. The constructor returns when it answers, at `url`."""

    def __init__(self, log: Path, *options: str) -> None:
        command = [*pylogd_command(), "console", "-l", "127.0.0.1:0", "--interval", "1", *options]
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(bound(command, signal.SIGTERM), stdout=subprocess.PIPE, stderr=errors)
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        line = self._process.stdout.readline().decode() if ready else ""
        if "://" not in line:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the console does not answer: {line!r} {self.log()}")
        self.url = line.split()[-1]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()

    def stop(self) -> None:
        """Stop it, and check how it ended."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE) == 0, self.log()
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert "#critical" not in self.log(), self.log()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class Visitor:
    """Somebody with a browser. status: of the last answer, page: its text."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        self._url = url
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        secured = urllib.request.HTTPSHandler(context=context)
        self._opener = urllib.request.build_opener(cookies, secured)
        self._plain = urllib.request.build_opener(cookies, secured, _NoRedirects())
        self.status = 0
        self.page = ""
        self.where = ""

    def get(self, path: str) -> str:
        """Return a page."""
        return self._open(urllib.request.Request(urllib.parse.urljoin(self._url, path)))

    def redirects(self, path: str, until: str) -> str:
        """Follow redirects by hand to the first URL that begins with `until`; return that."""
        where = urllib.parse.urljoin(self._url, path)
        for _ in range(10):
            request = urllib.request.Request(where)
            try:
                self._plain.open(request, timeout=60)
            except urllib.error.HTTPError as error:
                with error:
                    where = str(urllib.parse.urljoin(where, error.headers["Location"]))
                if where.startswith(until):
                    return where
            else:
                break
        raise AssertionError(f"{path} does not lead to {until}, but to {where}")

    def submit(self, path: str, **fields: str) -> str:
        """Fill in the form on a page, send it, and return the answer."""
        token = re.search(r'name="csrf" value="([^"]+)"', self.get(path))
        data = urllib.parse.urlencode({"csrf": token[1] if token else "", **fields}).encode()
        return self._open(urllib.request.Request(urllib.parse.urljoin(self._url, path), data))

    def confirm(self, path: str, **fields: str) -> str:
        """Look at an action's plan, and carry it out."""
        assert "Nothing has been changed yet" in self.submit(path, **fields), self.page
        return self.submit(path, **fields, confirm="yes")

    def until(self, path: str, text: str) -> str:
        """Return a page once it has a text."""
        end = time.monotonic() + PATIENCE
        while text not in self.get(path):
            assert time.monotonic() < end, f"{path} has no {text!r}:\n{self.page}"
            time.sleep(0.2)
        return self.page

    def _open(self, request: urllib.request.Request) -> str:
        try:
            with self._opener.open(request, timeout=60) as answer:
                self.status, self.where, self.page = answer.status, answer.url, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                self.status, self.where, self.page = error.code, error.url, error.read().decode()
        return self.page
