"""The block cache: the broker's own memory for the records appended last; reads do not evict them."""
