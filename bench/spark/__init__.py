"""What the Spark pipeline does in a second: `python -m bench.spark.…`."""
