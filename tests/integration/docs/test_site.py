"""The documentation site: it is built in strict mode, its links lead somewhere, and generated pages are current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import CHECKOUT
from tests.docs.kinds import blocks_of_kind
from tests.tools import tool


def test_the_site_is_built_and_leads_nowhere_else(tmp_path: Path) -> None:
    site = tool("build_site")
    assert site.build(tmp_path, None) > 60
    for page in site.GENERATED:
        assert (tmp_path / "html" / page).with_suffix(".html").stat().st_size > 50_000
    page = (tmp_path / "html" / "docs" / "concepts.html").read_text("utf-8")
    assert page.count('class="mermaid"') == page.count("sequenceDiagram") + page.count("flowchart") >= 5


@pytest.mark.parametrize(
    ("link", "fault"),
    [("[a](missing.md)", "missing.md is no file"), ("[a](glossary.md#nowhere)", "anchor does not exist")],
)
def test_a_link_that_leads_nowhere_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str, fault: str
) -> None:
    site = tool("build_site")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text("# Terms\n")
    (tmp_path / "README.md").write_text("# Test\n\nSee [terms](docs/glossary.md).\n")
    (tmp_path / "docs" / "faq.md").write_text(f"# Questions\n\n{link}\n")
    (tmp_path / "zensical.toml").write_text((CHECKOUT / "zensical.toml").read_text("utf-8"))
    monkeypatch.setattr(site, "ROOT", tmp_path)
    monkeypatch.setattr(site, "GENERATED", {})
    with pytest.raises(site.SiteError) as caught:
        site.build(tmp_path / "site", None)
    assert fault in "\n".join(caught.value.args)


def test_what_is_loaded_from_the_network_is_a_fault(tmp_path: Path) -> None:
    site = tool("build_site")
    (tmp_path / "index.html").write_text('<script src="https://example.com/a.js"></script><a href="https://b">b</a>')
    with pytest.raises(site.SiteError, match=r"loads https://example\.com/a\.js"):
        site.check(tmp_path)


def test_the_page_of_benchmarks_is_current() -> None:
    text = CHECKOUT.joinpath("docs", "benchmarks.md").read_text("utf-8")
    assert text == tool("generate_benchmarks_doc").page(), "run tools/generate_benchmarks_doc.py"


def test_each_page_is_in_the_navigation() -> None:
    text = (CHECKOUT / "zensical.toml").read_text("utf-8")
    there = {str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("docs/*.md")}
    assert there <= set(re.findall(r'"(docs/[\w-]+\.md)"', text))
    assert blocks_of_kind("diagram")
