"""Tables that topics are loaded into, behind one interface: the Parquet lake, Iceberg and Delta.

Read `interface` first: it says what a load is, and what every format promises. `position` has the offsets, and the
check that refuses to make a commit twice. `records` has the columns and rows of tables without a schema. Each format is
a package. Nothing here knows Spark: `pylogd.lake.spark.load` plans loads and runs their tasks.
"""
