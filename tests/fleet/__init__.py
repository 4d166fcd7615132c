"""A fleet acted out: brokers with labels over two racks, placement, expansion, mirrors, and fail-over from many faults.

`python -m tests.fleet` runs all of it and writes RESULTS.md; `test_fleet` is the small version.
"""
