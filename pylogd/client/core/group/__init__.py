"""Take part in a consumer group: membership, assignment, committed offsets."""
