"""The block cache: memory of the broker's own for what producers appended last, which no reader can push out."""
