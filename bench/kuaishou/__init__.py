"""Measure the inventions that Kuaishou described in 2019, one experiment each; see `__main__.py`."""
