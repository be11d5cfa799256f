"""`format("suwi-iceberg")`: Iceberg tables through pyiceberg."""
