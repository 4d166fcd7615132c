"""The replicas that a broker holds: appends, reads, replication, and requests that wait."""
