"""An S3 server in this process: moto's, with conditional writes that are atomic as those of Amazon S3 are.

moto looks whether an object exists, and then stores the new one; between the two another request may come in. Here one
conditional write is served at a time. A store that ignores the condition, as some do, can be had for comparison.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

import boto3  # type: ignore[import-untyped]
import s3fs  # type: ignore[import-untyped]
from moto.backends import get_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

KEY, SECRET, REGION = "key", "secret", "us-east-1"


def environment(address: str) -> dict[str, str]:
    """Return the variables with which AWS's clients find a server."""
    return {
        "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
    }  # fmt: skip


class S3Server:
    """A server with an empty bucket `lake`, to be used in a `with` statement.

    requests: how many requests were served, by method. honours: whether it honours `If-None-Match`.
    """

    bucket = "lake"

    def __init__(self, *, honours: bool = True) -> None:
        self.requests: Counter[str] = Counter()
        self.honours = honours
        self._lock = threading.Lock()
        self._app: Callable[..., Iterable[bytes]] = DomainDispatcherApplication(create_backend_app)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, name="s3", daemon=True)

    @property
    def address(self) -> str:
        """The URL of the endpoint."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def client(self) -> Any:
        """Return a client of boto3. Each thread needs its own session."""
        return boto3.session.Session().client(
            "s3", endpoint_url=self.address, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name=REGION
        )

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.requests[environ["REQUEST_METHOD"]] += 1
        if "HTTP_IF_NONE_MATCH" not in environ or environ["REQUEST_METHOD"] == "GET":
            return self._app(environ, start_response)
        if not self.honours:
            del environ["HTTP_IF_NONE_MATCH"]
        with self._lock:
            return list(self._app(environ, start_response))

    def __enter__(self) -> S3Server:
        s3fs.S3FileSystem.clear_instance_cache()  # those made by the environment know an earlier server
        self._thread.start()
        get_backend("s3").reset()
        self.client().create_bucket(Bucket=self.bucket)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def s3_process() -> Iterator[str]:
    """Run a server in a process of its own, with an empty bucket `lake`, and yield its URL.

    For libraries such as deltalake that hold the interpreter's lock while they wait for an answer.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.s3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the S3 server did not start"
        yield address
    finally:
        process.communicate()  # it ends with its input


def main() -> None:
    """Serve until the standard input ends."""
    with S3Server() as server:
        print(server.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
