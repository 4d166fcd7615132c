"""Track positions, decide what to fetch, and decode fetched records."""
