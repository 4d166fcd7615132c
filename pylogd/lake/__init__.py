"""Topics as tables: Parquet lakes, Iceberg and Delta, filled by Spark or by a mirror, each record exactly once.

Begin with `tables.interface`, the promises of a table. `spark` has the source and the sink for Spark and the loader on
it, `typed` makes columns from registered schemas.

May import `base`, `client` and `wire`; no Twisted, since all of it runs in Spark's processes too.
"""
