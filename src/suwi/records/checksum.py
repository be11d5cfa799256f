"""`crc32c`: the checksum of batches, from the package with that name.

Only its compiled module is loaded: the package queries `importlib.metadata` for its version, which
takes longer at every start than most of our own modules together.
"""

import importlib.util
from importlib.machinery import PathFinder
from typing import Protocol, cast

from typing_extensions import Buffer


class Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = ..., /) -> int: ...


def _load() -> Checksum:
    package = importlib.util.find_spec("crc32c")
    assert package is not None, "a dependency"
    compiled = PathFinder.find_spec("_crc32c", package.submodule_search_locations)
    if compiled is None or compiled.loader is None:
        from crc32c import crc32c

        return crc32c
    module = importlib.util.module_from_spec(compiled)
    compiled.loader.exec_module(module)
    return cast(Checksum, module.crc32c)


crc32c = _load()
