"""Compare sanitized copies of the compiled functions with Python: the child of `tests.fuzz.compiled`.

    python -m tests.fuzz.sanitized FOLDER SECONDS FIRST

The copies in FOLDER, named like the modules, take the place of the compiled modules before anything of the package is
imported. So it does not matter whether what is imported has compiled modules: a checkout may have none.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def replace_modules(folder: Path) -> None:
    """Have the modules in `folder` imported in place of those with their names."""
    for file in sorted(folder.glob("*.so")):
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)


def main(folder: str, seconds: str, first: str) -> None:
    """Run as the command line says."""
    replace_modules(Path(folder))
    from tests.fuzz.compiled import SOURCES, full_name, run  # noqa: PLC0415 - not before the modules are replaced

    run({name: sys.modules[full_name(source)] for name, source in SOURCES.items()}, float(seconds), int(first))


if __name__ == "__main__":
    main(*sys.argv[1:])
