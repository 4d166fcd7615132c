"""Replicas: what a broker does with the partitions it holds; appends, reads, waiting."""
