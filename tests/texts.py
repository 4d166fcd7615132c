"""Values of records that are hard to make text of, and the text that tables of strings have of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_BAD: Final = "\N{REPLACEMENT CHARACTER}"
#: Bytes -> text. One U+FFFD stands for each maximal part of a character (Unicode 16, section 3.9, table 3-11).
TEXTS: Final[Mapping[bytes | None, str | None]] = {
    b"plain": "plain",
    b"": "",
    None: None,
    b"\xff\xfe": _BAD * 2,
    "é€😀\0".encode(): "é€😀\0",
    b"a\x80b": f"a{_BAD}b",
    b"cut \xe2\x82": f"cut {_BAD}",
    b"cut \xf0\x9f\x98x": f"cut {_BAD}x",
    b"long \xc0\xaf": f"long {_BAD * 2}",
    b"half \xed\xa0\x80": f"half {_BAD * 3}",
    b"far \xf4\x90\x80\x80": f"far {_BAD * 4}",
    b"two \xe2\x82\xe2\x82\xac": f"two {_BAD}€",
    b"\xef\xbb\xbfmark": "\ufeffmark",
    b"1:00ff": "1:00ff",
}
