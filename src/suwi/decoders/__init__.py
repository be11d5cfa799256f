"""Bytes of a record's key or value as Python values: text, JSON, Avro, Protobuf, schema registry.

`decoder.Decoder` is the entrance for whoever shows records; `suwi.spark.decoders` makes columns of
the same schemas. fastavro and protobuf are imported when they are first needed.
"""
