"""A page of results is replaced, and the notes below it stay."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pages import NOTES, write_page


def test_a_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    write_page(page, ["# Title", "", "first"])
    write_page(page, ["# Title", "", "second", ""])
    assert page.read_text() == "# Title\n\nsecond\n"


def test_notes_stay_as_they_are(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    notes = f"{NOTES}\n\nBy hand: ## Notes are kept.\n\n* one\n"
    page.write_text(f"# Title\n\nfirst\n\n{notes}")
    for _ in range(3):
        write_page(page, ["# Title", "", "second", "", ""])
        assert page.read_text() == f"# Title\n\nsecond\n\n{notes}"


def test_every_program_that_writes_a_page_keeps_its_notes() -> None:
    checkout = Path(__file__).resolve().parents[2]
    modules = [path for folder in ("bench", "conformance", "tests") for path in (checkout / folder).rglob("*.py")]
    replaces = re.compile(r'(\.md"\)|REPORT|[. ]results|\bpage)\.write_text\((?!json)')
    found = {path.relative_to(checkout).as_posix() for path in modules if replaces.search(path.read_text("utf-8"))}
    assert found == {"tests/unit/test_pages.py", "tests/integration/docs/test_site.py"}  # pages of the tests themselves
    assert sum("write_page(" in path.read_text("utf-8") for path in modules) > 20
