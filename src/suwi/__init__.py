"""Suwi: a Kafka-compatible event log."""

import sys

__version__ = "0.1.0"


def _import_kio_without_hypothesis() -> None:
    """Where hypothesis is installed, kio gives it a strategy for each of its types: that takes a
    second or more, and leaves a directory `.hypothesis` behind. Nobody here uses them."""
    name = "hypothesis"
    before = {name: sys.modules[name]} if name in sys.modules else {}
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        import kio.static._phantom  # noqa: F401 - the module that looks for it
    finally:
        del sys.modules[name]
        sys.modules.update(before)


_import_kio_without_hypothesis()
