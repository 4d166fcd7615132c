"""Iceberg tables, by pyiceberg: the extra `pylogd-broker[iceberg]`.

`catalogs` finds the catalog, `table` commits, `staging` writes files in tasks.
"""
