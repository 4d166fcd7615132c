"""Changes that users see: fragments in changelog.d/ that towncrier can read, and a page of notes for each release."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pylogd import __version__

CHECKOUT = Path(__file__).resolve().parents[2]
CHANGELOG = (CHECKOUT / "CHANGELOG.md").read_text("utf-8")
CONFIG = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
TYPES = [each["directory"] for each in CONFIG["type"]]
RELEASES = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", CHANGELOG, re.MULTILINE)
NAME = re.compile(rf"(\+[a-z0-9]+(-[a-z0-9]+)*|\d+)\.({'|'.join(TYPES)})\.md")
#: In a line of a fragment: with the list mark that a release puts in front of it, a line of CHANGELOG.md.
_MOST_CHARACTERS = 118


def faults(name: str, text: str) -> list[str]:
    """Return what is wrong with a fragment."""
    found = [] if NAME.fullmatch(name) else [f"the name is not +NAME.TYPE.md or NUMBER.TYPE.md, with a type of {TYPES}"]
    if not text.strip() or not text.endswith("\n") or "\n\n" in text or text.startswith(("-", "*", "#")):
        found.append("the text is not one paragraph without a list mark")
    if max(map(len, text.splitlines()), default=0) > _MOST_CHARACTERS:
        found.append(f"a line has more than {_MOST_CHARACTERS} characters")
    return found


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_fragments_are_well_formed() -> None:
    fragments = [path for path in (CHECKOUT / CONFIG["directory"]).iterdir() if path.name != "README.md"]
    wrong = {path.name: faults(path.name, path.read_text("utf-8")) for path in fragments}
    assert {name: found for name, found in wrong.items() if found} == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("topics-sort.added.md", "It sorts.\n"),
        ("+topics.sorted.md", "It sorts.\n"),
        ("+topics.added.md", "- It sorts.\n"),
        ("+topics.added.md", "It sorts.\n\nAnd more.\n"),
        ("+topics.added.md", ""),
        ("+topics.added.md", "a" * 119 + "\n"),
    ],
)
def test_a_bad_fragment_is_found(name: str, text: str) -> None:
    assert faults(name, text)


@pytest.mark.parametrize("name", ["+topics-sort.added.md", "39.fixed.md", "+tls.security.md"])
def test_a_good_fragment_is_accepted(name: str) -> None:
    assert faults(name, "It sorts,\nby size.\n") == []


def test_unreleased_changes_are_not_in_the_changelog() -> None:
    before, mark, _ = CHANGELOG.partition(CONFIG["start_string"])
    assert mark, "towncrier does not find where to write"
    assert not re.search(r"^(- |\* |### )", before.partition("## [Unreleased]")[2], re.MULTILINE)


def test_each_release_has_notes_of_one_page() -> None:
    assert sorted(RELEASES, key=version, reverse=True) == RELEASES
    assert version(__version__) >= version(RELEASES[0])
    navigation = (CHECKOUT / "zensical.toml").read_text("utf-8")
    for release in RELEASES:
        page = f"docs/releases/{release}.md"
        assert len((CHECKOUT / page).read_text("utf-8").split()) <= 500
        assert f'"{page}"' in navigation
