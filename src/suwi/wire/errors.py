"""What is wrong with a peer's bytes. Its connection is closed, nothing else suffers."""

import struct


class MalformedMessage(Exception):
    """Bytes that do not parse."""


class MalformedRequest(MalformedMessage):
    """A request that does not parse, or is of an API that does not exist."""


class MalformedResponse(MalformedMessage):
    """A response that does not parse."""


class InvalidFields(Exception):
    """Our own mistake: fields that do not fit the message to be written."""


# What taking bytes apart by hand may raise where they are broken.
BROKEN_BYTES = (MalformedMessage, struct.error, IndexError, ValueError)
