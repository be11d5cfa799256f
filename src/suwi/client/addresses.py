"""Broker addresses: `host:port`, several separated by commas, IPv6 addresses in brackets."""

from typing import NamedTuple

DEFAULT_PORT = 9092
_PORT_MAX = 65535


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> list[Address]:
    """Raises ValueError with a text for the user."""
    addresses = [parse_address(part.strip()) for part in text.split(",") if part.strip()]
    if not addresses:
        raise ValueError("no address given: HOST:PORT, like 127.0.0.1:9092")
    return addresses


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Raises ValueError with a text for the user."""
    if text.startswith("[") and "]" in text:
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, colon, port = text.rpartition(":")
        if not colon:
            host, port = text, ""
        if ":" in host:
            raise ValueError(
                f"{text!r}: put an IPv6 address in brackets, like [::1]:{default_port}"
            )
    if not port and not text.endswith(":"):
        port = str(default_port)
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX):
        raise ValueError(
            f"{text!r} is not an address: give HOST:PORT, like 127.0.0.1:{default_port}"
        )
    return Address(host, int(port))
