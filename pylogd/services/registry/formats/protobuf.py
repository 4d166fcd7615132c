"""Protobuf: protoc, which is part of `grpcio-tools`, decides whether a file is valid; references are its imports.

`protobuf_differences` decides which changes are compatible. A schema is a `.proto` file, or a FileDescriptorProto in
base64, as clients in Python send it; the registry keeps it as a `.proto` file in one form (`protobuf_text`). buf's
program was tried and rejected: it lacks the rules of Confluent's registry for `oneof`, takes 13 times as long, and has
46 MB (`docs/schema-registry.md` has the figures).
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_tools import _protoc_compiler

from pylogd.services.registry.errors import InvalidSchema
from pylogd.services.registry.formats.protobuf_differences import incompatibilities
from pylogd.services.registry.formats.protobuf_meaning import normal_form, resolved
from pylogd.services.registry.formats.protobuf_text import ProtoWriter
from pylogd.services.registry.model import Definition, Definitions

_INVALID: Final = "Invalid schema of type PROTOBUF, details: "
_MAIN: Final = "this-schema.proto"
_STANDARD: Final = Path(_protoc_compiler.__file__).parent / "_proto"
#: Lines that protoc logs besides its errors.
_LOG_LINE: Final = re.compile(r"[IWE]\d{4} |WARNING: All log messages")
_CONFLUENT: Final = Path(__file__).parent / "protos"


def canonical(definitions: Definitions, *, normalize: bool) -> str:
    """Return the last of these definitions as a `.proto` file in the form of `protobuf_text`."""
    definitions = _as_texts(definitions)
    files = _compiled(definitions)
    return ProtoWriter(files.file[-1], _pool(files.file), comments=not normalize, ordered=normalize).text()


def rendered(definitions: Definitions, form: str) -> str:
    """Return the file: for `serialized` a FileDescriptorProto in base64, for `ignore_extensions` without extensions."""
    if form not in ("serialized", "ignore_extensions"):
        return definitions[-1].text
    file = _compiled(_as_texts(definitions)).file[-1]
    if form == "ignore_extensions":
        _clear_extensions(file)
        return ProtoWriter(file, DescriptorPool()).text()  # it has its own options, which no file of the pool names
    file.ClearField("source_code_info")
    file.name = "default"
    return base64.b64encode(file.SerializeToString()).decode("ascii")


def conflicts(reader: Definitions, writer: Definitions) -> list[str]:
    """Return why messages of `writer` can't be read with `reader`, by the rules of Confluent's registry."""
    old, new = _compiled(_as_texts(writer)), _compiled(_as_texts(reader))
    return incompatibilities(list(old.file), list(new.file))


def _clear_extensions(file: FileDescriptorProto) -> None:
    file.ClearField("extension")
    messages = list(file.message_type)
    while messages:
        message = messages.pop()
        messages += message.nested_type
        message.ClearField("extension")
        message.ClearField("extension_range")


def _as_texts(definitions: Definitions) -> Definitions:
    """Return the definitions with a `.proto` file in place of every serialised descriptor."""
    done: list[Definition] = []
    for name, text in definitions:
        file = _descriptor(text)
        done.append(Definition(name, text if file is None else _written(file, tuple(done))))
    return tuple(done)


def _descriptor(text: str) -> FileDescriptorProto | None:
    """Return the descriptor that a text has in base64; None for a `.proto` file."""
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return file if file.ListFields() else None


def _written(file: FileDescriptorProto, before: Definitions) -> str:
    """Return a descriptor as a `.proto` file. Raises InvalidSchema if no file has that descriptor."""
    imports = "".join(f'import "{name}";\n' for name in file.dependency)
    known = _compiled((*before, Definition("", f'syntax = "proto3";\n{imports}')))
    file.name = _MAIN
    pool = _pool(known.file[:-1])
    try:
        file = resolved(file, pool)
    except TypeError as error:
        raise InvalidSchema(f"{_INVALID}{error}") from None
    text = ProtoWriter(file, pool).text()
    again = _compiled((*before, Definition("", text))).file[-1]
    if normal_form(again, pool) != normal_form(file, pool):
        raise InvalidSchema(f"{_INVALID}the descriptor can't be written as a .proto file")
    return text


def _pool(files: Iterable[FileDescriptorProto]) -> DescriptorPool:
    pool = DescriptorPool()
    for file in files:
        pool.Add(file)
    return pool


def _compiled(definitions: Definitions) -> FileDescriptorSet:
    """Return the descriptors of the last of these files and of all files that it imports, its own last."""
    with tempfile.TemporaryDirectory(prefix="pylogd-proto-") as folder:
        root = Path(folder)
        for name, text in definitions:
            path = PurePosixPath(name or _MAIN)
            if path.is_absolute() or ".." in path.parts:
                raise InvalidSchema(f"{_INVALID}the name of a reference must be a relative path: {name!r}")
            target = root / "schemas" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
        target = root / "descriptors"
        errors = _run(root / "schemas", target)
        if errors is not None:
            raise InvalidSchema(f"{_INVALID}{errors}")
        return FileDescriptorSet.FromString(target.read_bytes())


def _run(source: Path, target: Path) -> str | None:
    """Run the compiler, in this process. Return its errors; None if it succeeded."""
    places = [str(source), str(_STANDARD), str(_CONFLUENT)]
    common = find_spec("google.type")
    if common is not None and common.submodule_search_locations:
        places.append(f"google/type={next(iter(common.submodule_search_locations))}")
    arguments = ["protoc", *(f"-I{place}" for place in places), "--include_imports", "--include_source_info"]
    arguments += [f"--descriptor_set_out={target}", _MAIN]
    messages = target.with_suffix(".errors")
    status = _with_stderr(messages, lambda: _protoc_compiler.run_main([each.encode() for each in arguments]))
    if status == 0:
        return None
    found = messages.read_text("utf-8", "replace").replace(f"{source}/", "").replace(_MAIN + ":", "line ")
    return "; ".join(line for line in found.splitlines() if not _LOG_LINE.match(line)) or "protoc refused it"


def _with_stderr(path: Path, work: Any) -> int:
    """Call `work`, and redirect the standard error of C code to a file meanwhile. Return the result."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("wb") as target:
            os.dup2(target.fileno(), 2)
        return int(work())
    finally:
        os.dup2(kept, 2)
        os.close(kept)
