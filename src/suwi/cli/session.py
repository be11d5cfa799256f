"""Commands that work on a cluster: their common options, the connection, errors, the exit code.

`on_cluster` makes a command of an async function; `run` connects, does the work and reports errors
as one line on stderr.
"""

import asyncio
import functools
import inspect
import os
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, ParamSpec

import typer

from suwi.admin.failure import Failure
from suwi.admin.server_properties import BROKER_VARIABLE, CONFIG_VARIABLE, parse_properties
from suwi.cli.output import OutputClosed, OutputFailed, complain, flush
from suwi.client.addresses import Address, parse_addresses
from suwi.client.cluster import Cluster
from suwi.client.connection import ConnectionLost
from suwi.client.errors import Unreachable, reason
from suwi.client.settings import ClientSettings
from suwi.client.versioned_connection import Connect
from suwi.env import local_env
from suwi.model.config_kinds import BadConfig
from suwi.model.errors import BrokerError

P = ParamSpec("P")

DEFAULT_BROKER = "127.0.0.1:9092"
OK, FAILED, INTERRUPTED = 0, 1, 130


# -- options ---------------------------------------------------------------------------------------


def broker_option(help_text: str) -> Any:
    return typer.Option(
        "--broker",
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT",
        envvar=BROKER_VARIABLE,
        help=help_text,
    )


Broker = Annotated[str, broker_option("A broker of the cluster; several separated by commas.")]
CommandConfig = Annotated[
    str | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        envvar=CONFIG_VARIABLE,
        help="A client.properties with Kafka's keys for TLS and SASL.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="Only in this state; repeatable."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(metavar="PORT", min=0, max=65535, help="Serve Prometheus metrics on this port."),
]
MetricsHost = Annotated[str, typer.Option(metavar="HOST", help="The address of the metrics.")]
AllowChanges = Annotated[
    bool,
    typer.Option(
        "--allow-changes",
        show_default=False,
        help="The console may change topics, records, groups, replicas, rules and quotas, too.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Validate only; change nothing.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Partition = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Its partition.")]


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse `KEY=VALUE` texts to a dict; any other text is a usage error."""
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (equals and key.strip()):
            raise typer.BadParameter(f"{text!r}: give it as KEY=VALUE", param_hint=option)
        found[key.strip()] = value.strip()
    return found


def read_text(path: str, option: str, *, from_stdin: bool = False) -> str:
    """A text file that the user names; a usage error if it cannot be read."""
    try:
        if from_stdin and sys.stdin is None:
            raise OSError("stdin is closed")
        data = sys.stdin.buffer.read() if from_stdin else local_env().disk.read_bytes(path)
        return data.decode()
    except OSError as error:
        problem = error.strerror or str(error)
    except UnicodeDecodeError:
        problem = "not a text file in UTF-8"
    raise typer.BadParameter(f"{path}: {problem}", param_hint=option)


# -- running a command -----------------------------------------------------------------------------


class Target(NamedTuple):
    """The cluster of a command, and the file with the security settings."""

    broker: str
    command_config: str | None


Work = Callable[[Cluster], Awaitable[int | None]]


def make_command(
    work: Callable[..., Any], common: Mapping[str, tuple[Any, Any]], run_work: Callable[..., None]
) -> Callable[..., None]:
    """A command with the options of `work`, without its first parameter, and with common options,
    given as types and defaults by name. `run_work` gets the values of the common options and a
    function, which it calls with the first argument of `work`."""

    @functools.wraps(work)
    def command(**values: Any) -> None:
        given = [values.pop(name) for name in common]
        run_work(*given, lambda first: work(first, **values))

    signature = inspect.signature(work)
    _, *parameters = signature.parameters.values()
    for name, (annotation, default) in common.items():
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    command.__dict__["__signature__"] = signature.replace(parameters=parameters)
    return command


def local_command(work: Callable[P, int | None]) -> Callable[P, None]:
    """The command of a function that needs no cluster. It returns the exit code; None is 0."""

    @functools.wraps(work)
    def command(*args: P.args, **values: P.kwargs) -> None:
        raise typer.Exit(guarded(lambda: work(*args, **values)))

    return command


def on_cluster(work: Callable[..., Awaitable[int | None]]) -> Callable[..., None]:
    """The command of an async function: --broker and --command-config determine the `Cluster`, its
    first argument. It returns the exit code; None is 0."""
    common = {"broker": (Broker, DEFAULT_BROKER), "command_config": (CommandConfig, None)}
    return make_command(work, common, lambda broker, file, job: run(Target(broker, file), job))


def run(
    target: Target,
    work: Work,
    *,
    interrupted: int = INTERRUPTED,
    unreachable: int = FAILED,
    settings: ClientSettings | None = None,
) -> None:
    """Do the work and exit; `interrupted` is the exit code after Ctrl-C, `unreachable` the one if
    no broker responds."""
    try:
        addresses = parse_addresses(target.broker)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--broker") from None
    connect, access = None, _Access()
    if target.command_config is not None:
        connect, access = connector(target.command_config)

    def job() -> int | None:
        try:
            return asyncio.run(_work(addresses, connect, settings, work))
        except Unreachable as error:
            complain(_unreachable_text(error, access))
            return unreachable

    raise typer.Exit(guarded(job, interrupted))


async def _work(
    addresses: list[Address], connect: Connect | None, settings: ClientSettings | None, work: Work
) -> int | None:
    random = local_env().random
    async with Cluster(addresses, random=random, settings=settings, connect=connect) as cluster:
        try:
            return await work(cluster)
        except ConnectionLost:
            if cluster.brokers:
                raise
            raise Unreachable([(addresses[0], _ClosedAtFirstRequest())]) from None


def guarded(job: Callable[[], int | None], interrupted: int = INTERRUPTED) -> int:
    """Run a job, report errors on stderr, and return the exit code."""
    try:
        code = job() or OK
        flush()
        return code
    except KeyboardInterrupt:
        return interrupted
    except OutputClosed:
        _drop_output()
        return OK
    except OutputFailed as failure:
        _drop_output()
        complain(str(failure))
    except Failure as failure:
        complain(str(failure))
    except Unreachable as error:
        complain(_unreachable_text(error, _Access()))
    except ConnectionLost as error:
        complain(f"lost the connection to the broker: {error}")
    except OSError as error:
        about = f"{error.filename}: " if error.filename else ""
        complain(about + reason(error))
    except BrokerError as error:
        complain(error.message or error.code.name.replace("_", " "))
    return FAILED


def _drop_output() -> None:
    """Otherwise Python would try to flush the rest at exit, and print an error."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # noqa: TID251


def is_input_a_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()  # None: it is closed


@contextmanager
def prompting() -> Iterator[None]:
    """Ctrl-C ends a prompt at once; asyncio's handler would let it go on."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def confirm_deletion(what: str, question: str) -> None:
    """Raises `Failure` unless the user agrees."""
    if not is_input_a_terminal():
        raise Failure(f"{what} needs --yes without a terminal")
    with prompting():
        is_confirmed = typer.confirm(question, err=True)
    if not is_confirmed:
        raise Failure("nothing was deleted")


# -- security settings, and why a broker cannot be reached -----------------------------------------


class _Access(NamedTuple):
    """The security settings of a command, from its client.properties."""

    file: str = ""
    protocol: str = "PLAINTEXT"
    has_certificate: bool = False

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")


class _ClosedAtFirstRequest(ConnectionLost):
    """A broker that closes the connection after ApiVersions, as one that requires SASL does."""

    def __init__(self) -> None:
        super().__init__("it closed the connection at the first request")


def connector(path: str) -> tuple[Connect, _Access]:
    """A `Connect` with the settings of a client.properties."""
    from suwi.client.security import connect_securely, read_client_security

    env = local_env()
    properties, client_id = _properties(path), ClientSettings().client_id
    with _refusing(path):
        security = read_client_security(properties, env.disk, env.random)
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    has_certificate = any(key.startswith("ssl.keystore.") for key in properties)
    return connect_securely(security, client_id), _Access(path, protocol, has_certificate)


def user_connector(path: str) -> Callable[[str, str], Connect]:
    """As `connector`, with the name and password of whoever logs in."""
    from suwi.client.security import connect_as_users

    env = local_env()
    with _refusing(path):
        return connect_as_users(_properties(path), env.disk, env.random, ClientSettings().client_id)


def _properties(path: str) -> dict[str, str]:
    return parse_properties(read_text(path, "--command-config"))


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    """What is wrong with the file is a usage error."""
    try:
        yield
    except OSError as error:
        problem = error.strerror or str(error)
    except BadConfig as error:
        problem = str(error)
    else:
        return
    raise typer.BadParameter(f"{path}: {problem}", param_hint="--command-config")


def _unreachable_text(error: Unreachable, access: _Access) -> str:
    tried = "; ".join(
        f"no broker at {address}: {_reason_text(cause, access)}" for address, cause in error.tried
    )
    return f"{tried}. {_hint([cause for _, cause in error.tried], access)}"


def _reason_text(error: Exception, access: _Access) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if _is_broken_handshake(error, access):
        return "it closed the connection during the TLS handshake"
    return reason(error)


def _is_broken_handshake(error: Exception, access: _Access) -> bool:
    is_disconnect = isinstance(
        error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError
    )
    return access.has_tls and is_disconnect and not isinstance(error, ConnectionLost)


def _hint(errors: list[Exception], access: _Access) -> str:
    if any(isinstance(error, ssl.SSLCertVerificationError) for error in errors):
        return f"Set ssl.truststore.location in {access.file} to the authority that signed it"
    if any(isinstance(e, ssl.SSLError) or _is_broken_handshake(e, access) for e in errors):
        return f"The listener may have no TLS: see security.protocol in {access.file}"
    if any(isinstance(error, ConnectionLost) for error in errors):
        return _security_hint(access)
    if any(isinstance(error, TimeoutError) for error in errors):
        return "Another program may listen there, or the broker is overloaded"
    return "Start one with `suwi serve`, or name another with --broker HOST:PORT"


def _security_hint(access: _Access) -> str:
    if not access.file:
        return "If it requires TLS or SASL, configure it with --command-config FILE"
    missing = []
    if not access.has_tls:
        missing.append("TLS (security.protocol)")
    elif not access.has_certificate:
        missing.append("a client certificate (ssl.keystore.location)")
    if not access.protocol.startswith("SASL_"):
        missing.append(f"SASL (security.protocol=SASL_{access.protocol})")
    if not missing:
        return f"Check whether the settings in {access.file} are what it requires"
    return f"It may require {' or '.join(missing)}, which {access.file} does not have"
