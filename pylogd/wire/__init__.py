"""Encode and decode the Kafka wire protocol without I/O: no Twisted, no files, no clocks.

Received bytes become events. Messages become parts to send, which are bytes or objects that represent bytes.
May import `pylogd.base.errors` and nothing else of the project.
"""
