"""One file per Kafka API. A handler takes a `Request` and returns an `Answer`."""
