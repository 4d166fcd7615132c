"""Strangers who keep a broker busy without asking for anything, beside clients that must not notice.

`crowds` has what they do, a coroutine for each; `python -m tests.strangers` measures.
"""
