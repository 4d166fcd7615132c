"""Batch records, order and retry batches, and interpret what brokers answer."""
