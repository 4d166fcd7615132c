"""The transaction coordinator: the partitions of each transaction, its end, and the questions of partition leaders."""
