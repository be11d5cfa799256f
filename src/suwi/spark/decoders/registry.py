"""The name that scripts of `suwi pipeline show` import; see `suwi.decoders.registry`."""

from suwi.decoders.registry import Registry

__all__ = ["Registry"]
