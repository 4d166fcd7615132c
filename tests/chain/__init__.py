"""The chain of the Kafka paper, acted out with real processes that are killed and frozen."""
