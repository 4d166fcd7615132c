"""Loaders of one Iceberg or Delta table as processes that race and are killed: `make races`."""
