"""Each code block of the documents has a kind, and so a test; those that need no broker are checked here."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from pylogd.client.properties import parse_properties, security_from
from pylogd.config.settings import Settings
from pylogd.config.source import read_file
from pylogd.credentials.passwords import parse_users
from tests.conftest import CHECKOUT
from tests.docs import kinds
from tests.docs.blocks import Block, all_blocks, blocks_in, pages
from tests.docs.kinds import blocks_of_kind, excepted_line, kind_of
from tests.docs.messages import letters_explained

#: What a block of settings leaves to others of its page.
_MORE = {
    "docs/authentication.md": {"ssl.keystore.location": "/etc/pylogd/broker.pem"},
    "docs/listeners.md": {
        "listeners": "SASL_SSL://:9093,BETWEEN://:9094",
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,BETWEEN:SSL",
        "ssl.keystore.location": "/etc/pylogd/broker.pem",
    },
}


def named(kind: str) -> pytest.MarkDecorator:
    """Run a test for each block of a kind."""
    found = blocks_of_kind(kind)
    return pytest.mark.parametrize("block", found, ids=map(str, found))


def test_each_block_has_a_kind_and_a_language() -> None:
    unknown = [
        f"{block} ({block.language or 'no language'}): {block.first}" for block in all_blocks() if not kind_of(block)
    ]
    assert not unknown, "give them a kind in tests/docs/kinds.py:\n" + "\n".join(unknown)


def test_each_row_of_the_tables_is_used() -> None:
    blocks = all_blocks()
    named = {(block.page, block.first) for block in blocks}
    assert {*kinds.EXCEPTED, *kinds.BY_FIRST_LINE} <= named
    assert set(kinds.BY_PAGE) <= {(block.page, block.language) for block in blocks}
    lines = [line for block in blocks if block.language == "sh" for line in block.text.splitlines()]
    assert any(map(excepted_line, lines))
    for module in kinds.RUN_BY.values():
        assert CHECKOUT.joinpath(module).exists()
    used = {kind_of(block) for block in blocks}
    assert used - {"excepted"} == set(kinds.RUN_BY)
    for kind, module in kinds.RUN_BY.items():
        text = CHECKOUT.joinpath(module).read_text("utf-8")
        assert f'"{kind}"' in text, f"{module} does not run {kind}"


def test_no_block_is_only_indented() -> None:
    """It would have no language, and no test. In lists what is indented is text; docstrings have examples."""
    for page in pages():
        text = CHECKOUT.joinpath(page).read_text("utf-8")
        text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
        found = re.findall(r"^[^ \n*-].*\n\n    \S.*", text, re.MULTILINE)
        assert not found, (page, found)


def test_a_block_that_does_not_end_is_an_error() -> None:
    assert [block.text for block in blocks_in("x.md", "a\n```sh\nls\n```\n* b\n\n  ```toml\n  a = 1\n  ```\n")] == [
        "ls\n",
        "a = 1\n",
    ]
    with pytest.raises(ValueError, match=r"x\.md:2: the block does not end"):
        blocks_in("x.md", "a\n```sh\nls\n")


def test_extras_that_documents_name_exist() -> None:
    parser = configparser.ConfigParser()
    parser.read(CHECKOUT / "setup.cfg")
    extras = set(parser["options.extras_require"])
    pages = [*CHECKOUT.glob("docs/*.md"), CHECKOUT / "README.md"]
    wanted = {
        extra.strip()
        for page in pages
        for found in re.findall(r"pylogd-broker\[([\w, ]+)\]", page.read_text("utf-8"))
        for extra in found.split(",")
    }
    assert wanted and wanted <= extras


@named("settings")
def test_a_broker_accepts_the_settings(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "pylogd.toml"
    path.write_text(block.text)
    values = read_file(path)
    assert values
    Settings({**_MORE.get(block.page, {}), **values})


@named("client properties")
def test_clients_accept_the_properties(block: Block) -> None:
    """A block may show several ways, with an empty line or a comment between them; all begin with the same lines."""
    common, *ways = re.split(r"^#.*\n|\n(?=\n)", block.text, flags=re.MULTILINE)
    for way in ways or [""]:
        properties = parse_properties(common + way)
        assert security_from({"security.protocol": "SASL_SSL", **properties}) is not None


@named("librdkafka")
def test_librdkafka_knows_the_properties(block: Block, tmp_path: Path) -> None:
    """Files that a block names need not exist, but librdkafka looks for them after it has checked all names."""
    _, common, *ways = re.split(r"^#.*\n", block.text, flags=re.MULTILINE)
    first = common.splitlines()[0]
    for way in [common, *(way if "security.protocol" in way else f"{first}\n{way}" for way in ways)]:
        properties = parse_properties(way)
        with pytest.raises(KafkaException) as caught:
            Producer({**properties, "ssl.ca.location": str(tmp_path / "none.pem")})
        assert re.search("ssl.ca.location failed|No provider for SASL mechanism GSSAPI", str(caught.value))


@named("users file")
def test_a_users_file_is_read(block: Block) -> None:
    hashed = "$scrypt$ln=14,r=8,p=1$c2FsdA$" + "A" * 43
    users = parse_users(re.sub(r"\$scrypt\S+", lambda _: hashed, block.text), "users")
    assert set(users) == {"alice", "bob"}


@named("json")
def test_json_is_valid(block: Block) -> None:
    decoder = json.JSONDecoder()
    rest, found = block.text.strip(), 0
    while rest:
        _, end = decoder.raw_decode(rest)
        rest, found = rest[end:].lstrip(), found + 1
    assert found


@named("diagram")
def test_a_diagram_is_of_a_known_type(block: Block) -> None:
    """`make site` renders them; here it is checked that each has a type, and that names in it are defined."""
    assert re.match(r"(stateDiagram-v2|flowchart (LR|TB|TD)|sequenceDiagram)\n", block.text)
    assert block.text.count("[") == block.text.count("]") and block.text.count("{") == block.text.count("}")


@named("message")
def test_what_pylogd_is_said_to_write_is_in_its_source(block: Block) -> None:
    """Lines of one word are values, and a line after `$` is a command."""
    for line in block.text.splitlines():
        if " " in line.strip() and not line.startswith("$ "):
            assert letters_explained(line) > 0.6, line


def test_the_check_of_messages_can_fail() -> None:
    assert letters_explained("The broker has a cold and would like some tea, please.") < 0.5
