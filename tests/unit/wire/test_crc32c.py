"""CRC-32C comes from the package's extension module alone, or from the package where that is not found."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pylogd.wire import crc as module

CHECK = 0xE3069283  # of b"123456789", as in RFC 3720


def test_the_function() -> None:
    assert module.crc32c(b"123456789") == CHECK
    assert module.crc32c(b"6789", module.crc32c(b"12345")) == CHECK
    assert module._load()(memoryview(b"123456789")) == CHECK


def test_the_package_is_not_imported_and_can_be_imported_later() -> None:
    program = (
        "import sys\nfrom pylogd.wire.crc import crc32c as own\n"
        "print('crc32c' in sys.modules, 'importlib.metadata' in sys.modules)\n"
        "import crc32c\nprint(own(b'x') == crc32c.crc32c(b'x'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("False False\nTrue\n", "")


def test_the_package_where_its_extension_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "crc32c", raising=False)
    monkeypatch.setattr(module, "_EXTENSION", "_elsewhere")
    assert module._load_extension() is None
    assert module._load()(b"123456789") == CHECK
    assert "crc32c" in sys.modules
    assert module._load_extension() is None, "the package is loaded, with all of its parts"
