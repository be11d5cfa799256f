"""Timeouts and the client id of a client."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    client_id: str = "suwi"
    connect_timeout_s: float = 10
    request_timeout_s: float = 30
    """The connection is closed if a response takes longer."""
    retry_timeout_s: float = 60
    """How long an idempotent call is retried."""
    storage_retry_timeout_s: float = 5
    """How long a call is retried if the only replica of a partition has a storage error."""
    retry_pause_s_min: float = 0.05
    retry_pause_s_max: float = 1
    metadata_age_s_max: float = 300
    """Leader changes are noticed by errors, new partitions only by refreshing the metadata."""
