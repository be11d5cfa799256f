"""Kafka's wire protocol: headers, the version table, and encoding and decoding of messages.

`versions` lists the APIs, `headers` encodes headers, `codec` encodes and decodes any message with
kio's schemas. `produce`, `fetch_request` and `fetch_response` are hand-written codecs for the two
frequent APIs, which do not copy records.
Invariant: decoding any bytes ends in a message or in `MalformedMessage`, and the memory it takes is
bounded by the bytes received, not by announced lengths.
"""
