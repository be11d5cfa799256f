"""Kafka's bytes: headers, the version table, and messages to and from bytes.

`versions` says what exists, `headers` frames a message, `codec` reads and writes any of them with
kio's schemas, and `produce` and `fetch` do the two frequent ones by hand, without copying records.
Invariant: whatever the bytes are, reading them ends in a message or in `MalformedMessage`, and
never takes more memory than the bytes that were received call for.
"""
