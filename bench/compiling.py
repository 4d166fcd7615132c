"""Compile the C programs of the benchmarks, at their first use and when their source is newer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

#: Where the programs go.
PROGRAMS = Path(__file__).parents[1] / ".cache" / "bench"


def compiled(source: Path, options: Sequence[str] = (), inputs: Sequence[Path] = (), packages: str = "gcc") -> Path:
    """Compile a C program, unless that is done; return its path.

    options: for compiler and linker. inputs: other files that it is made of. packages: the Debian packages it needs.
    Exits with what is missing.
    """
    program = PROGRAMS / source.stem
    program.parent.mkdir(parents=True, exist_ok=True)
    newest = max(path.stat().st_mtime for path in (source, *inputs))
    if program.exists() and program.stat().st_mtime > newest:
        return program
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit(f"bench: needs a C compiler (Debian: apt-get install {packages})")
    command = [compiler, "-O2", "-pthread", "-o", str(program), str(source), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench: {source.name} can't be compiled (Debian: apt-get install {packages})\n{done.stderr}")
    return program
