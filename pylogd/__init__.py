"""pylogd: a distributed log broker on Twisted that speaks the Kafka wire protocol."""

__version__ = "0.1.0"
