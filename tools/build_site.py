"""Build the documentation site into .cache/site/html, as `make site` does: `python tools/build_site.py`.

The pages are those of the navigation in zensical.toml, with all files that they link to. They are copied, in the same
tree, so that links work on the site as they do in the repository. Pages that only repeat what the code says are not in
the repository: `GENERATED` makes them. zensical renders all, in its strict mode. Then
each page of the result is checked: its links have targets, with anchors, and nothing is loaded from the network.

zensical and not MkDocs with its Material theme, whose look it has: both of these are no longer developed, and zensical
is what the theme's authors go on with; it builds all pages in seconds.

--mermaid FILE is the script that draws diagrams in the reader's browser (tools/find-mermaid.sh finds it). Without it
the site is checked, but diagrams stay text.
"""

from __future__ import annotations

import argparse
import html.parser
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
#: Attributes by which a page loads something at once; `href` of <a> does not.
_LOADING = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
#: <link>s that name an address and load nothing.
_NAMING = {"canonical", "next", "prev", "alternate"}


#: Pages that are made from the code for the site, and the module beside this one whose `page` does it. Pages of the
#: repository don't link to them, since they are not there for who reads these without the site.
GENERATED = {
    "docs/command-reference.md": "generate_commands_doc",
    "docs/client-api.md": "generate_client_api",
    "docs/state-machines.md": "generate_machine_docs",
}


class SiteError(Exception):
    """The site has faults, which the arguments name."""


def links_of(text: str) -> list[str]:
    """Return the targets of a Markdown text's links and images, without those in code."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text)))


def local_links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield (link, file, anchor) for each link of a page to a file of the checkout. The file need not exist."""
    for link in links_of(page.read_text("utf-8")):
        parts = urllib.parse.urlsplit(link)
        if not parts.scheme and not link.startswith("//"):
            path = urllib.parse.unquote(parts.path)
            yield link, (page.parent / path).resolve() if path else page, parts.fragment


def navigation(entries: list[object]) -> Iterator[str]:
    """Yield the pages of a navigation."""
    for entry in entries:
        if isinstance(entry, dict):
            for value in entry.values():
                yield from [value] if isinstance(value, str) else navigation(value)


def present(entries: list[object]) -> list[object]:
    """Return a navigation without the pages that are not there."""
    kept: list[object] = []
    for entry in entries:
        assert isinstance(entry, dict)
        ((name, value),) = entry.items()
        if isinstance(value, list):
            kept.append({name: present(value)})
        elif (ROOT / value).exists():
            kept.append({name: value})
    return kept


def files() -> set[Path]:
    """Return the pages of the navigation, and what these and their links lead to. Raises SiteError."""
    config = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    waiting = [ROOT / page for page in navigation(present(config["nav"]))]
    found: set[Path] = set()
    faults = []
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        if path.suffix != ".md":
            continue
        for link, target, _ in local_links(path):
            if target.is_file():
                waiting.append(target)
            else:
                faults.append(f"{path.relative_to(ROOT)}: {link} is no file")
    if faults:
        raise SiteError(*faults)
    return found


def stage(source: Path, mermaid: Path | None) -> None:
    """Copy all files to the folder that zensical reads."""
    shutil.rmtree(source, ignore_errors=True)
    for path in files():
        target = source / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for page, module in GENERATED.items():
        made = runpy.run_path(str(Path(__file__).with_name(f"{module}.py")))["page"]()
        (source / page).write_text(made, encoding="utf-8")
    script = source / "assets" / "mermaid.min.js"
    script.parent.mkdir(parents=True, exist_ok=True)
    if mermaid is None:
        script.write_text("var mermaid = {initialize() {}, async render(id, text) { return {svg: text} }};\n")
    else:
        shutil.copyfile(mermaid, script)


def configuration() -> str:
    """Return zensical.toml with a navigation of what is there."""
    text = (ROOT / "zensical.toml").read_text("utf-8")
    lines = []
    for line in text.splitlines(keepends=True):
        page = re.search(r'= "([^"]+\.md)" \}', line)
        if page is None or page[1] in GENERATED or (ROOT / page[1]).exists():
            lines.append(line)
        else:
            print(f"make: the site has no {page[1]} yet")
    return "".join(lines)


class _Page(html.parser.HTMLParser):
    """What a rendered page has: ids, links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        for name, value in given.items():
            if (tag, name) in _LOADING and not _NAMING & set(given.get("rel", "").split()):
                self.loaded.append(value)


def check(site: Path) -> int:
    """Check all rendered pages, and return their number. Raises SiteError."""
    pages = {path.resolve(): _Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    faults = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        faults += [f"{name}: loads {url}" for url in page.loaded if re.match(r"(\w+:)?//", url)]
        if name.name == "404.html":
            continue  # its links are absolute, for a server
        for link in (*page.links, *page.loaded):
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                faults.append(f"{name}: {link} does not exist")
            elif parts.fragment and target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].ids:
                faults.append(f"{name}: {link} has no such place")
    if faults:
        raise SiteError(*faults)
    return len(pages)


def build(folder: Path, mermaid: Path | None) -> int:
    """Build the site below `folder` and check it. Return the number of pages. Raises SiteError."""
    stage(folder / "source", mermaid)
    text = configuration().replace('".cache/site/', '"')
    (folder / "zensical.toml").write_text(text, "utf-8")
    shutil.rmtree(folder / "html", ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(folder / "zensical.toml")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SiteError(f"zensical build exits with {done.returncode}:", done.stdout[-6000:], done.stderr[-6000:])
    return check(folder / "html")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--mermaid", type=Path, help="the script that draws diagrams")
    given = parser.parse_args()
    folder = ROOT / ".cache" / "site"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        count = build(folder, given.mermaid)
    except SiteError as error:
        print(*error.args, sep="\n", file=sys.stderr)
        return 1
    print(f"make: {count} pages; open {folder / 'html' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
