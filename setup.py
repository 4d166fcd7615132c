"""What setup.cfg can't say: the compiled functions, which are left out where there is no compiler."""

from setuptools import Extension, setup

_COMPILED = (
    "wire/_speedups",
    "wire/fast/_fast",
    "broker/api/fast/_repeated",
    "broker/log/_residency",
    "link/_tls_records",
)
_INCLUDED = ["pylogd/wire/_inspect.h", "pylogd/wire/_stamps.h", "pylogd/broker/api/fast/_attributes.h"]

setup(
    ext_modules=[
        Extension(f"pylogd.{name.replace('/', '.')}", [f"pylogd/{name}.c"], depends=_INCLUDED, optional=True)
        for name in _COMPILED
    ]
)
