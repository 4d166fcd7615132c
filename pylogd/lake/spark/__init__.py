"""A source and a sink for Spark with the options of Spark's own Kafka source, on the Python Data Source API.

    reader = spark.read.format("pylogd").option("kafka.bootstrap.servers", "localhost:9092")
    flights = reader.option("subscribe", "flights").load()

`options`, `filters` and `ranges` compute what a query reads, without I/O. `offsets` asks the brokers, on the driver.
`reading` reads a range of one partition and `writing` writes rows, on executors; `worker` keeps consumers from one task
to the next. `source` has the classes that Spark calls; the top-level module `pyspark_pylogd` lets Spark find them
without registration. `idle` ends the workers that Spark no longer needs. Nothing here imports Twisted.
"""

from pylogd.lake.spark.idle import end_quietly

end_quietly()  # here, since a worker of Spark may import any module of this package first
