"""An S3 server in this process: moto's, with conditional writes that are atomic as those of Amazon S3 are.

moto looks whether an object exists, and then stores the new one; between the two another request may come in. Here one
conditional write is served at a time. A store that ignores the condition, as some do, can be had for comparison.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import boto3  # type: ignore[import-untyped]
from moto.backends import get_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

KEY, SECRET, REGION = "key", "secret", "us-east-1"


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
