"""Limits of the network layer: per connection, and for all connections together."""

from typing import NamedTuple

_UNLIMITED = 2**31 - 1
_UNAUTHENTICATED_IN_FLIGHT_MAX = 10


class Limits(NamedTuple):
    """Comments name Kafka's key where there is one. The others bound memory that a peer can use."""

    request_bytes_max: int = 104_857_600  # socket.request.max.bytes
    connections_max: int = _UNLIMITED  # max.connections
    connections_per_ip_max: int = _UNLIMITED  # max.connections.per.ip
    idle_ms_max: int = 600_000  # connections.max.idle.ms
    # Per connection: requests whose reply has not been sent, and the bytes of those replies (of the
    # request while the reply is not ready). Reading is paused while either limit is reached.
    in_flight_requests_max: int = 1_000
    in_flight_bytes_max: int = 16 * 1024 * 1024
    # How long a connection with many pipelined requests is served before the next connection. The
    # time is the event loop's; the number is for simulated loops, where time stands still.
    turn_ms_max: float = 2.0
    turn_requests_max: int = 128
    # All connections together: memory for incomplete frames.
    unfinished_bytes_max: int = 512 * 1024 * 1024
    # All connections together: replies in memory that have not been sent.
    unsent_bytes_max: int = 256 * 1024 * 1024
    # A frame that takes longer than this must arrive at the minimum rate, which is checked once per
    # such period (a tenth of it while frames wait for memory).
    frame_ms_max: int = 60_000
    frame_bytes_per_s_min: int = 4_096
    # How long a closing connection may take to send its last replies.
    close_ms_max: int = 5_000
    # How long a peer may stay unauthenticated, including the TLS handshake.
    authenticate_ms_max: int = 30_000
    authenticated: "Limits | None" = None
    """The limits after authentication; None if no authentication is required."""

    def before_authentication(self, request_bytes_max: int) -> "Limits":
        """The limits of an unauthenticated peer."""
        return self._replace(
            request_bytes_max=min(request_bytes_max, self.request_bytes_max),
            in_flight_requests_max=_UNAUTHENTICATED_IN_FLIGHT_MAX,
            authenticated=self,
        )
