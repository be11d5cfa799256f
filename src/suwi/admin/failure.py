"""Why something that was asked for cannot be done."""


class Failure(Exception):
    """The text gives the reason and what to do."""
