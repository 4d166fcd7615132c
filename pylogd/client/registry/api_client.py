"""Send requests to a registry's HTTP API and return the JSON that it answers.

Blocking, without Twisted: it runs in Spark's executors too.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

from pylogd.base.errors import PylogdError
from pylogd.client.registry.access import Access
from pylogd.web.client import read_body

#: The most bytes of a registry's answer: a schema, which is JSON in JSON.
_MOST_BYTES: Final = 1 << 23


class SchemaRegistryError(PylogdError):
    """The registry answered with an error, or can't be reached. `code` is the API's error code, or 0."""

    def __init__(self, message: str, code: int = 0) -> None:
        self.code = code
        super().__init__(message)


class RegistryApi:
    """The API of the registry at `url`. Threads may share it."""

    def __init__(self, url: str, timeout: float = 10.0, settings: Mapping[str, str] | None = None) -> None:
        """timeout: the seconds within which the whole answer must arrive.

        settings: TLS and credentials (`access`).

        Raises ValueError for settings that are unknown or contradict each other.
        """
        self._access = Access(url, settings or {})
        self._timeout = timeout

    def ask(self, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None) -> Any:
        """Return the answer to a GET, or to a POST of a body.

        path: the quoted path.

        Raises SchemaRegistryError.
        """
        return self.send("GET" if body is None else "POST", path, body, query)

    def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> Any:
        """Return the answer to a request of that HTTP method.

        path: the quoted path.

        Raises SchemaRegistryError.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        url = self._access.url + path + ("?" + urllib.parse.urlencode(query) if query else "")
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with self._access.open(request, self._timeout) as reply:
                return json.loads(read_body(reply, _MOST_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(error) from error
        except (OSError, ValueError) as error:
            raise SchemaRegistryError(f"can't reach the schema registry at {self._access.url}: {error}") from error


def path_of(*parts: object) -> str:
    """Return a path of these parts, each of them quoted."""
    return "".join("/" + urllib.parse.quote(str(part), safe="") for part in parts)


def _refused(error: urllib.error.HTTPError) -> SchemaRegistryError:
    try:
        document = json.loads(read_body(error, _MOST_BYTES))
        return SchemaRegistryError(str(document["message"]), int(document["error_code"]))
    except (OSError, ValueError, KeyError, TypeError):
        return SchemaRegistryError(f"the schema registry answered {error.code} {error.reason}")
