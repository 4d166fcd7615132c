"""Classes, functions and modules keep to the bounds of `tests/shapes.py`, or have no more than the list says.

Line limits divided code without making it simpler. These numbers count what a reader has to hold in mind:

* attributes (20 for a class): the names that its methods assign on `self`, and the fields that its body declares (those
  of a dataclass or NamedTuple, and names with a type and no value). Class variables and properties do not count. If a
  class is the only subclass of a base that is not used by itself, the base is a part of it: its attributes count for
  the subclass only.
* parameters (6 for a function): all of them, keyword-only ones too, without `self` and `cls`. `*args` counts as one.
* imports (25 for a module): the modules of pylogd that it imports, also in functions and under TYPE_CHECKING.
* booleans (2 for a class): attributes that are declared as `bool`, or whose values are evidently True or False, and
  that get a value after `__init__`, through `self` or through another name in the same module. Three of them have eight
  states: make them a table in the form of `pylogd/base/machine.py`.

The generated messages are left out. `tests/unit/shapes.json` lists what exceeded a bound when the bounds were made. The
list may only fall: a number that rises fails the test, and a number that fell has to be lowered in the list with
`python -m tests.shapes`. After a rename or a move run `python -m tests.shapes --rewrite`, and look at the difference.
"""

from __future__ import annotations

from pathlib import Path

from tests.layers import PACKAGE
from tests.shapes import BOUNDS, Shapes, faults, lowered, measure, read_list

NOTHING: Shapes = {what: {} for what in BOUNDS}


def test_nothing_exceeds_the_bounds_or_the_list() -> None:
    lines = faults(measure(PACKAGE), read_list())
    assert not lines, "\n".join(["", *lines, "After a rename or a move: python -m tests.shapes --rewrite"])


def shapes_of(folder: Path, **modules: str) -> Shapes:
    package = folder / "package"
    package.mkdir()
    for name, text in modules.items():
        (package / f"{name}.py").write_text(text)
    return measure(package)


def assignments(first: int, last: int) -> str:
    return "".join(f"        self.a{number} = {number}\n" for number in range(first, last))


def test_attributes_of_a_class_and_of_its_parts_are_counted(tmp_path: Path) -> None:
    part = f"class Part:\n    declared: int\n    def one(self):\n{assignments(0, 10)}"
    whole = f"from package.part import Part\nclass Whole(Part):\n    def two(self):\n{assignments(10, 20)}"
    fields = "".join(f"    f{number}: int = 0\n" for number in range(21))
    rows = f"@dataclass(slots=True)\nclass Row:\n{fields}    shared: ClassVar[int] = 0\n"
    plain = f"class Plain:\n{fields}"
    found = shapes_of(tmp_path, part=part, whole=whole, rows=rows, plain=plain)
    assert found == {**NOTHING, "attributes": {"package/rows.py:Row": 21, "package/whole.py:Whole": 21}}


def test_a_base_of_several_classes_counts_by_itself(tmp_path: Path) -> None:
    base = f"class Base:\n    def one(self):\n{assignments(0, 21)}"
    found = shapes_of(tmp_path, base=base, one="class One(Base):\n    pass\n", two="class Two(Base):\n    pass\n")
    assert found == {**NOTHING, "attributes": {"package/base.py:Base": 21}}


def test_a_base_that_is_used_itself_counts_by_itself(tmp_path: Path) -> None:
    base = f"class Base:\n    def one(self):\n{assignments(0, 21)}"
    found = shapes_of(tmp_path, base=base, heir="class Heir(Base):\n    pass\n", user="Base()\n")
    assert found == {**NOTHING, "attributes": {"package/base.py:Base": 21}}


def test_parameters_of_functions_are_counted(tmp_path: Path) -> None:
    text = (
        "class A:\n    def most(self, a, b, c, d, *, e, f): ...\n"
        "    async def over(self, a, b, c, d, e, f, *args): ...\n"
        "    @staticmethod\n    def static(a, b, c, d, e, f, g): ...\n"
        "def outer():\n    def inner(a, b, c, d, e, f, /, g, **rest): ...\n"
    )
    over = {"package/m.py:A.over": 7, "package/m.py:A.static": 7, "package/m.py:outer.inner": 8}
    assert shapes_of(tmp_path, m=text) == {**NOTHING, "parameters": over}


def test_imports_of_modules_are_counted(tmp_path: Path) -> None:
    leaves = {f"leaf{number}": "name = 1\n" for number in range(26)}
    text = "import json\n" + "".join(f"from package.{name} import name\n" for name in leaves)
    assert shapes_of(tmp_path, user=text, **leaves) == {**NOTHING, "imports": {"package/user.py": 26}}


def test_booleans_that_change_are_counted(tmp_path: Path) -> None:
    text = """
class Door:
    def __init__(self, is_wooden: bool, label: str):
        self.is_wooden = is_wooden
        self.open = False
        self.locked = label == "locked"
        self.painted: bool = bool(label)
        self.label = False

    def turn(self, locked: bool):
        self.open = not self.open
        self.locked = locked and not self.open
        self.label = "turned"

def paint(door):
    door.painted = True
"""
    assert shapes_of(tmp_path, doors=text) == {**NOTHING, "booleans": {"package/doors.py:Door": 3}}


def test_a_number_may_only_fall() -> None:
    listed: Shapes = {**NOTHING, "attributes": {"m.py:Grown": 22, "m.py:Less": 30, "m.py:Within": 21}}
    found: Shapes = {**NOTHING, "attributes": {"m.py:Grown": 23, "m.py:Less": 25}, "parameters": {"m.py:new": 7}}
    assert faults(found, listed) == [
        "m.py:Grown has 23 attributes, 22 are listed: divide it, it has several jobs",
        "m.py:Less has fewer attributes than the 30 that are listed: run python -m tests.shapes",
        "m.py:Within has fewer attributes than the 21 that are listed: run python -m tests.shapes",
        "m.py:new has 7 parameters, the bound is 6: divide it, it has several jobs",
    ]
    assert lowered(found, listed) == {**NOTHING, "attributes": {"m.py:Grown": 22, "m.py:Less": 25}}
