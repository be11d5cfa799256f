"""The broker's listeners: opened at start, serving clients once the broker is ready.

`start` opens all ports behind a `StartGate`; `enable_request_processing` removes the gate.
Invariant: all listeners share one connection budget, whose limits follow the configuration.
"""

import errno
import socket
from collections.abc import Callable, Sequence
from functools import partial

from suwi.broker.listener_security import ListenerSecurity
from suwi.env.problems import ProblemKind, Problems
from suwi.metadata.image import Endpoint
from suwi.model.broker_config import BrokerConfig
from suwi.model.listener_config import ListenerSpec
from suwi.net.client_quota_manager import ClientQuotaManager
from suwi.net.connection import Dispatch
from suwi.net.limits import Limits
from suwi.net.listener import Budget, FailedLogIn, Listener
from suwi.net.start_gate import StartGate


class SocketServer:
    def __init__(
        self,
        config: BrokerConfig,
        specs: Sequence[ListenerSpec],
        security: Sequence[ListenerSecurity],
        descriptors_max: int,
        problems: Problems,
        quotas: ClientQuotaManager,
        inter_broker_listener: ListenerSpec,
        on_log_in_failed: Callable[[FailedLogIn], None],
    ) -> None:
        """`security`: one for each of `specs`. `descriptors_max`: for all connections together."""
        self._inter_broker_listener = inter_broker_listener
        self.listeners: list[Listener] = []
        self.start_gate: StartGate | None = None
        """Holds client requests back until the broker is ready."""
        self._specs = specs
        self._security = security
        self._descriptors_max = descriptors_max
        self._budget = Budget(
            self._limits(config),
            on_refused=partial(problems.report, ProblemKind.CONNECTIONS_REFUSED, "broker"),
            on_log_in_failed=on_log_in_failed,
            quotas=quotas,
        )
        self._dispatch: Dispatch | None = None

    @property
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                spec.name,
                spec.advertised_host or _reachable(spec.host),
                spec.advertised_port or listener.port,
            )
            for spec, listener in zip(self._specs, self.listeners, strict=True)
        ]

    async def start(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self.start_gate = StartGate(dispatch)
        budget = self._budget
        for spec, security in zip(self._specs, self._security, strict=True):
            listener = Listener(
                spec.name,
                spec.host,
                spec.port,
                security.guard(self.start_gate),
                budget,
                tls=security.tls,
                limits=security.limits(budget.limits),
                is_protected=len(self._specs) > 1 and spec is self._inter_broker_listener,
            )
            await listener.start()
            self.listeners.append(listener)

    def enable_request_processing(self) -> None:
        gate, dispatch = self.start_gate, self._dispatch
        if gate is None or dispatch is None:
            return
        self.start_gate = None
        for listener, security in zip(self.listeners, self._security, strict=True):
            listener.serve_with(security.guard(dispatch))
        gate.open()

    def apply_config(self, config: BrokerConfig) -> None:
        self._budget.limits = self._limits(config)

    def _limits(self, config: BrokerConfig) -> Limits:
        idle_ms = config.connections_max_idle_ms
        return Limits(
            request_bytes_max=config.socket_request_max_bytes,
            connections_max=min(config.max_connections, self._descriptors_max),
            connections_per_ip_max=config.max_connections_per_ip,
            idle_ms_max=idle_ms if idle_ms >= 0 else 2**62,
        )


def _reachable(host: str) -> str:
    """Clients cannot connect to a wildcard address: advertise localhost instead."""
    return "localhost" if host in ("0.0.0.0", "::") else host


def bind_problem(spec: ListenerSpec, error: OSError) -> str | None:
    """A message for an error of binding a listener; None if the error has another cause.

    An error of a file has a file name, an error of a socket does not.
    """
    if isinstance(error, socket.gaierror):
        reason = f"the host name {spec.host!r} cannot be resolved"
    elif error.filename is not None:
        return None
    elif error.errno == errno.EADDRINUSE:
        reason = "another program, perhaps another broker, already listens there"
    elif error.errno == errno.EADDRNOTAVAIL:
        reason = "this machine does not have that address"
    elif error.errno == errno.EACCES:
        reason = "permission denied; ports below 1024 usually need more rights"
    else:
        return None
    return f"cannot listen on {spec.address}: {reason}"
