"""The block cache: the broker's own memory for the last appended records, which reads do not evict."""
