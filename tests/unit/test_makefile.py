"""The Makefile's tables: what documents name is there, and what is there can run; which tests each suite has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.__main__ import BENCHMARKS, listed, main
from tests.parts import FOLDERS, PARTS, part_of

CHECKOUT = Path(__file__).resolve().parents[2]
TEXT = (CHECKOUT / "Makefile").read_text("utf-8")
ROWS = {table: re.findall(rf"^#{table} ([a-z-]+) \| [^|]+ \| .+", TEXT, re.MULTILINE) for table in ("prove", "package")}
RUNS = dict(re.findall(r"^run\.([a-z-]+) = ((?:.*\\\n)*.*)", TEXT, re.MULTILINE))
#: The longest list that is read as a whole.
_MOST_IN_HELP = 16


def rules() -> set[str]:
    """Return the names of all targets."""
    plain = re.findall(r"^([a-z-][a-z -]*):(?!=)", TEXT, re.MULTILINE)
    return {name for names in plain for name in names.split()} | set(RUNS) | {f"bench-{name}" for name in BENCHMARKS}


def test_help_is_short() -> None:
    assert 10 < len(re.findall(r"^[a-z-]+:.* ## ", TEXT, re.MULTILINE)) <= _MOST_IN_HELP


def test_each_row_has_a_command_and_each_command_a_row() -> None:
    assert sorted(RUNS) == sorted(ROWS["prove"] + ROWS["package"])
    assert set(re.findall(r"^needs\.([a-z-]+) = ", TEXT, re.MULTILINE)) - {"bench"} <= set(RUNS)


def test_each_command_runs_a_file_that_exists() -> None:
    for name, line in RUNS.items():
        modules = [CHECKOUT / module.replace(".", "/") for module in re.findall(r"\$\(RUN\) ([\w.]+)", line)]
        scripts = [CHECKOUT / script for script in re.findall(r"\b(?:packages|tests)/[\w/]+\.(?:sh|py)", line)]
        assert modules or scripts, name
        assert all(path.exists() or path.with_suffix(".py").exists() for path in [*modules, *scripts]), name


def test_each_target_that_a_document_names_exists() -> None:
    pages = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").glob("*.md"), CHECKOUT / "bench" / "README.md"]
    known = rules()
    named: dict[str, str] = {}
    for page in pages:
        if page.name != "CHANGELOG.md":
            named |= dict.fromkeys(re.findall(r"`make ([a-z-]+)", page.read_text("utf-8")), page.name)
    assert len(named) > 50, "the targets are not recognized any more"
    assert {name: page for name, page in named.items() if name not in known} == {}


def test_each_benchmark_has_a_target_a_module_a_page_and_a_row_in_the_readme() -> None:
    rows = re.search(r"^rows\.bench := ((?:.*\\\n)*.*)", TEXT, re.MULTILINE)
    assert rows is not None
    assert sorted(rows[1].replace("\\", "").split()) == sorted(BENCHMARKS)
    table = (CHECKOUT / "bench" / "README.md").read_text("utf-8").partition("\n## ")[0]
    described = re.findall(r"`([a-z-]+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)))
    assert sorted(described) == sorted(BENCHMARKS)
    for name, one in BENCHMARKS.items():
        module = CHECKOUT / "bench" / name.replace("-", "_")
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), name
        assert (CHECKOUT / "bench" / one.page).exists(), name


def test_every_page_of_results_is_of_a_benchmark() -> None:
    pages = {path.name for path in (CHECKOUT / "bench").glob("*.md")} - {"README.md", "EARLIER.md"}
    assert pages == {one.page for one in BENCHMARKS.values() if one.page.endswith(".md")}


def test_benchmarks_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    assert listed() in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["nothing"])
    assert ended.value.code == 2
    assert "there is no benchmark 'nothing'" in capsys.readouterr().err


def test_each_test_is_in_one_part_of_one_suite() -> None:
    tests = CHECKOUT / "tests"
    folders = [folder for parts in FOLDERS.values() for below in parts.values() for folder in below]
    assert len(set(folders)) == len(folders) and len(set(PARTS)) == len(PARTS)
    assert [folder for folder in folders if not list((tests / folder).rglob("test_*.py"))] == []
    files = [path for path in tests.rglob("test_*.py") if not path.is_relative_to(tests / "bench")]
    assert {part_of(path) for path in files} == set(PARTS)
    assert part_of(tests / "integration" / "test_smoke.py") == "core"
    assert part_of(tests / "integration" / "spark" / "lake" / "test_load.py") == "lake"
