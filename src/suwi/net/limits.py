"""How much one peer, and all peers together, may ask of the broker's network side."""

from typing import NamedTuple

_UNLIMITED = 2**31 - 1
_UNAUTHENTICATED_IN_FLIGHT_MAX = 10


class Limits(NamedTuple):
    """Kafka's keys where Kafka has one; the rest bounds memory that a peer could pin."""

    request_bytes_max: int = 104_857_600  # socket.request.max.bytes
    connections_max: int = _UNLIMITED  # max.connections
    connections_per_ip_max: int = _UNLIMITED  # max.connections.per.ip
    idle_ms_max: int = 600_000  # connections.max.idle.ms
    # Per connection: requests whose reply has not left, and the bytes of those replies (for a
    # request still waiting: its own size). Reading pauses while either is reached.
    in_flight_requests_max: int = 1_000
    in_flight_bytes_max: int = 16 * 1024 * 1024
    # How much a connection with many requests at hand has served before others get their turn. The
    # time is that of the loop; the number bounds it as well where that stands still.
    turn_ms_max: float = 2.0
    turn_requests_max: int = 128
    # All connections together: memory lent to frames that have not fully arrived.
    unfinished_bytes_max: int = 512 * 1024 * 1024
    # All connections together: replies in memory that peers have not taken yet.
    unsent_bytes_max: int = 256 * 1024 * 1024
    # A frame may take this long; a longer one must come at the minimum rate, checked over each
    # such period (a tenth of it while frames wait for memory).
    frame_ms_max: int = 60_000
    frame_bytes_per_s_min: int = 4_096
    # A connection that is being closed may take this long to hand over its last replies.
    close_ms_max: int = 5_000
    # Who has not said who it is may stay this long, a TLS handshake included.
    authenticate_ms_max: int = 30_000
    authenticated: "Limits | None" = None
    """What holds instead once the peer is authenticated; None: nothing waits for that."""

    def before_authentication(self, request_bytes_max: int) -> "Limits":
        """What holds until then, for one who may be anybody."""
        return self._replace(
            request_bytes_max=min(request_bytes_max, self.request_bytes_max),
            in_flight_requests_max=_UNAUTHENTICATED_IN_FLIGHT_MAX,
            authenticated=self,
        )
