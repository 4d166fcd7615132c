"""What setup.cfg can't say: the compiled loops, which are left out where there is no compiler."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("pylogd.wire._speedups", ["pylogd/wire/_speedups.c"], optional=True)])
