"""What setup.cfg can't say: the compiled functions, which are left out where there is no compiler."""

from setuptools import Extension, setup

_COMPILED = ("wire/_speedups", "log/_residency")

setup(
    ext_modules=[
        Extension(f"pylogd.{name.replace('/', '.')}", [f"pylogd/{name}.c"], optional=True) for name in _COMPILED
    ]
)
