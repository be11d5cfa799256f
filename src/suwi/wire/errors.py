"""Errors in a peer's bytes, which close its connection and affect nothing else."""

import struct


class MalformedMessage(Exception):
    """Bytes that cannot be decoded."""


class TooManyItems(MalformedMessage):
    """More items than a message may have."""


class MalformedRequest(MalformedMessage):
    """A request that cannot be decoded, or of an unknown API."""


class RequestTooLarge(MalformedRequest):
    """A request with more items or bytes than are accepted."""


class MalformedResponse(MalformedMessage):
    """A response that cannot be decoded."""


class InvalidFields(Exception):
    """A bug of the caller: fields that do not fit the message to encode."""


# What the hand-written decoders may raise on malformed bytes.
BROKEN_BYTES = (MalformedMessage, struct.error, IndexError, ValueError)
