"""Options that several commands share, and parsing of `KEY=VALUE`."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer

DEFAULT_BROKER = "127.0.0.1:9092"
DEFAULT_DATA = "suwi-cluster"
"""The directory of a local cluster."""
BROKER_VARIABLE = "SUWI_BROKER"
CONFIG_VARIABLE = "SUWI_COMMAND_CONFIG"
LOG_LEVELS = ("debug", "info", "warning", "error")


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


class Target(NamedTuple):
    """The cluster of a command, and the file with the security settings."""

    broker: str
    command_config: str | None


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse `KEY=VALUE` texts to a dict; any other text is a usage error."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and key.strip()):
            raise typer.BadParameter(f"{text!r}: give it as KEY=VALUE", param_hint=option)
        found[key.strip()] = value.strip()
    return found
