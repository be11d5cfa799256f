"""How patient a client is, and what it calls itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    client_id: str = "suwi"
    connect_timeout_s: float = 10
    request_timeout_s: float = 30
    """After this long without an answer the connection is given up."""
    patience_s: float = 60
    """How long a call that may be repeated is repeated."""
    storage_patience_s: float = 5
    """How long the only replica of a partition is asked again that cannot use its disk."""
    retry_pause_s_min: float = 0.05
    retry_pause_s_max: float = 1
    metadata_age_s_max: float = 300
    """Leaders that moved are found out by errors; new partitions only by asking again."""
