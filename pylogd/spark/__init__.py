"""pylogd in Spark: a source and a sink with the options of Spark's own Kafka source, on the Python Data Source API.

    reader = spark.read.format("pylogd").option("kafka.bootstrap.servers", "localhost:9092")
    flights = reader.option("subscribe", "flights").load()

`options` and `ranges` are pure: what the options mean, which offsets a query reads. `offsets` asks the brokers on the
driver, `reading` reads a range of one partition on an executor, `writing` writes there. `source` is what Spark sees;
the top-level module `pyspark_pylogd` lets it find that without a registration. Nothing here imports Twisted.
"""
