"""What goes wrong with decoding: the job, one record, or the schema registry."""


class CannotDecode(ValueError):
    """The arguments do not fit together, or a schema cannot be used: nothing was read."""


class BadRecord(Exception):
    """One record cannot be decoded; the text is the reason that goes with it."""


class RegistryUnavailable(Exception):
    """The schema registry does not answer: no fault of a record, which can be read again later."""
