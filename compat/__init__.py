"""Apache Kafka itself beside Suwi: its tools, its classes, its broker."""
