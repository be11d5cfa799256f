"""From records to columns: JSON, text, bytes, Avro, Protobuf; what does not fit is kept apart."""
