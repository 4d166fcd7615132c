"""Append to a log: check a batch by its header (`header_check`) or in full (`full_check`), write it, and commit it.

`direct` and `runs` write on the caller's thread, `staged` in a thread of the disk.
"""
