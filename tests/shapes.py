"""Count what makes classes, functions and modules hard to hold in mind, and keep the list of those over the bounds.

`tests/unit/test_shapes.py` compares the counts with `tests/unit/shapes.json`. Its docstring says what is counted.

    python -m tests.shapes              # lower the listed numbers to the present ones, and remove what is within bounds
    python -m tests.shapes --rewrite    # also follow renames and moves: write whatever exceeds a bound now
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from tests.layers import CHECKOUT, import_graph

LIST = CHECKOUT / "tests" / "unit" / "shapes.json"
#: What is counted -> the highest number that needs no entry in the list.
BOUNDS: Mapping[str, int] = {"attributes": 20, "parameters": 6, "imports": 25, "booleans": 2}
#: The module or package that is generated, below `pylogd/`.
GENERATED = "wire/messages/"
#: What is counted -> path and name of a thing -> its number.
Shapes: TypeAlias = dict[str, dict[str, int]]
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_FIRST_ASSIGNED_IN = ("__init__", "__post_init__", "__new__")


@dataclass(slots=True)
class ClassShape:
    """What one class statement says about the state of its instances.

    key: its path and qualified name.
    bases: the names of its bases in the source.
    attributes: the names of its instance attributes.
    booleans: the attributes that are declared as bool.
    others: the attributes that are declared as another type, or that get another value.
    reassigned: the attributes that get a value after `__init__`.
    """

    key: str
    bases: list[str]
    attributes: set[str] = field(default_factory=set)
    booleans: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    reassigned: set[str] = field(default_factory=set)

    def add(self, part: ClassShape) -> None:
        """Count what `part` has as this class's own."""
        self.attributes |= part.attributes
        self.booleans |= part.booleans
        self.others |= part.others
        self.reassigned |= part.reassigned


def measure(root: Path) -> Shapes:
    """Return the numbers of everything in the package `root` that exceeds a bound."""
    found = {what: Counter[str]() for what in BOUNDS}
    classes: list[ClassShape] = []
    made = set[str]()
    for path in sorted(root.rglob("*.py")):
        if not path.relative_to(root).as_posix().startswith(GENERATED):
            name = path.relative_to(root.parent).as_posix()
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found["parameters"] |= Counter(dict(_parameters(tree, f"{name}:")))
            classes += _classes(tree, name)
            made |= {_last_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for shape in _with_parts(classes, made):
        found["attributes"][shape.key] = len(shape.attributes)
        found["booleans"][shape.key] = len((shape.booleans - shape.others) & shape.reassigned)
    for module, targets in import_graph({root.name: root}).items():
        path = root.parent / Path(*module.split("."))
        name = f"{module.replace('.', '/')}{'/__init__' if path.is_dir() else ''}.py"
        if not name.startswith(f"{root.name}/{GENERATED}"):
            found["imports"][name] = len(targets)
    return {
        what: {key: number for key, number in sorted(found[what].items()) if number > bound}
        for what, bound in BOUNDS.items()
    }


def faults(found: Shapes, listed: Shapes) -> list[str]:
    """Return a line for each number that is not the listed one, which says what to do."""
    lines = []
    for what, bound in BOUNDS.items():
        new, old = found[what], listed[what]
        for key in sorted(new.keys() | old.keys()):
            now, before = new.get(key, bound), old.get(key, bound)
            if now > before:
                kind = f"{before} are listed" if key in old else f"the bound is {bound}"
                lines.append(f"{key} has {now} {what}, {kind}: divide it, it has several jobs")
            elif now < before:
                lines.append(f"{key} has fewer {what} than the {before} that are listed: run python -m tests.shapes")
    return lines


def lowered(found: Shapes, listed: Shapes) -> Shapes:
    """Return the list with each number that has fallen, and without what is within the bounds now."""
    return {
        what: {key: min(old, found[what][key]) for key, old in listed[what].items() if key in found[what]}
        for what in BOUNDS
    }


def read_list() -> Shapes:
    """Return the checked-in list."""
    shapes: Shapes = json.loads(LIST.read_text(encoding="utf-8"))
    return shapes


def _parameters(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the qualified name of each function in `node`, and the number of its parameters."""
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{prefix}{child.name}."
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner[:-1], len(_arguments(child)) - (isinstance(node, ast.ClassDef) and not _is_static(child))
        yield from _parameters(child, inner)


def _arguments(function: _Function) -> list[ast.arg]:
    args = function.args
    several = [arg for arg in (args.vararg, args.kwarg) if arg is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *several]


def _is_static(function: _Function) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in function.decorator_list)


def _classes(tree: ast.Module, path: str) -> Iterator[ClassShape]:
    """Yield the shape of each class of a module, also of those inside of classes and functions."""
    outside = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not _is_self(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            shape = ClassShape(f"{path}:{node.name}", [_last_name(base) for base in node.bases])
            _read_body(node, shape)
            shape.reassigned |= outside & shape.attributes
            yield shape


def _read_body(node: ast.ClassDef, shape: ClassShape) -> None:
    """Note the fields that the body of a class declares, and what its methods assign."""
    has_fields = "NamedTuple" in shape.bases or any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if "ClassVar" not in ast.unparse(statement.annotation) and (has_fields or statement.value is None):
                _declare(shape, statement.target.id, statement.annotation)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            _read_method(statement, shape)


def _read_method(method: _Function, shape: ClassShape) -> None:
    """Note the attributes of `self` that a method assigns, and whether the values are booleans."""
    flags = {arg.arg for arg in _arguments(method) if arg.annotation and ast.unparse(arg.annotation) == "bool"}
    names = set()
    for node in ast.walk(method):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute) and _is_self(node.target):
            _declare(shape, node.target.attr, node.annotation)
        elif isinstance(node, ast.Assign):
            boolean = _is_boolean(node.value, flags)
            for target in node.targets:
                if isinstance(target, ast.Attribute) and _is_self(target):
                    (shape.booleans if boolean else shape.others).add(target.attr)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node):
            names.add(node.attr)
    shape.attributes |= names
    if method.name not in _FIRST_ASSIGNED_IN:
        shape.reassigned |= names


def _declare(shape: ClassShape, name: str, annotation: ast.expr) -> None:
    shape.attributes.add(name)
    (shape.booleans if ast.unparse(annotation) == "bool" else shape.others).add(name)


def _is_boolean(value: ast.expr, flags: set[str]) -> bool:
    """Return whether an expression is evidently True or False. `flags` are the parameters that are declared as bool."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, bool)
    if isinstance(value, ast.BoolOp):
        return all(_is_boolean(one, flags) for one in value.values)
    negated = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    return negated or isinstance(value, ast.Compare) or (isinstance(value, ast.Name) and value.id in flags)


def _is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _last_name(base: ast.expr) -> str:
    """Return the name of a base class without its module and its type arguments."""
    if isinstance(base, ast.Subscript):
        return _last_name(base.value)
    return base.attr if isinstance(base, ast.Attribute) else ast.unparse(base)


def _with_parts(classes: list[ClassShape], made: set[str]) -> list[ClassShape]:
    """Give each class the attributes of the bases that are only its own, and return all others.

    A base that the package does not make objects of (`made` are the names that it calls), and that has one subclass, is
    a part of that class: it was divided for the length of its module. A name that several classes have means none of
    them.
    """
    names = Counter(shape.key.rpartition(":")[2] for shape in classes)
    heirs = Counter(base for shape in classes for base in shape.bases)
    parts = {
        name: shape
        for shape in classes
        if names[name := shape.key.rpartition(":")[2]] == 1 and heirs[name] == 1 and name not in made
    }
    for shape in classes:
        pending, seen = list(shape.bases), set[str]()
        while pending:
            base = pending.pop()
            if base in parts and base not in seen:
                seen.add(base)
                pending += parts[base].bases
                shape.add(parts[base])
    return [shape for shape in classes if shape.key.rpartition(":")[2] not in parts]


def main(arguments: list[str]) -> None:
    """Write the list. Arguments: none, or `--rewrite`."""
    found = measure(CHECKOUT / "pylogd")
    shapes = found if arguments == ["--rewrite"] else lowered(found, read_list())
    LIST.write_text(json.dumps(shapes, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
