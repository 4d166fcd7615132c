"""docs/client.md: its tables have all options of the library."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from pylogd import client
from pylogd.client import aio, deferred
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.options import ClientOptions
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.security import SecurityOptions

TEXT = Path(__file__).resolve().parents[3].joinpath("docs", "client.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("All clients", ClientOptions),
        ("Producer", ProducerOptions),
        ("Consumer", ConsumerOptions),
        ("SecurityOptions", SecurityOptions),
    ],
)
def test_documented_options_are_those_of_the_library(name: str, options: Any) -> None:
    inherited = (
        set() if options in (ClientOptions, SecurityOptions) else {field.name for field in fields(ClientOptions)}
    )
    expected = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(options)
        if field.name not in inherited
    }
    assert documented(name) == expected


@pytest.mark.parametrize("face", [client, aio, deferred])
def test_all_faces_have_the_same_options(face: Any) -> None:
    own = {"self", "bootstrap_servers", "options", "settings"} | {"reactor"}
    for name in ("Producer", "Consumer"):
        assert set(inspect.signature(getattr(face, name)).parameters) <= own
    parameters = inspect.signature(face.Admin).parameters
    assert {key: parameters[key].default for key in parameters.keys() - own} == documented("Admin")


def documented(name: str) -> dict[str, Any]:
    """Read the rows of a table of options from the document."""
    section = TEXT[TEXT.index(f"\n### {name}\n") :].split("\n### ")[1]
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| .+ \|$", section, re.MULTILINE)
    return {option: ast.literal_eval(default) for option, default in rows}
