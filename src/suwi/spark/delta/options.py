"""The options of `format("suwi-delta")`, read once.

Names are looked up without regard to case, as Spark does; those that Delta's own writer knows mean
the same here. What is for the object store goes after `storage.`, as in `storage.AWS_REGION`.
Invariant: an option that is not known is an error, so nothing is ignored in silence.
"""

import difflib
import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from suwi.spark.delta.errors import DeltaSinkError
from suwi.spark.delta.storage import local_path

STORAGE: Final = "storage."
TARGET_BYTES: Final = 128 << 20
NAMES: Final = {
    "path": "where the table is: a directory, `s3://…`, `gs://…`, `abfss://…`",
    "partitionBy": "columns that a new table is partitioned by, separated by commas",
    "mergeSchema": "true: columns that the table does not have are added to it",
    "targetFileSize": "a file that has this size is closed and the next begun: `128mb`",
    "compression": "of the Parquet files: snappy, zstd, gzip, lz4 or none",
    "keys": "columns that say which row is meant: rows of the table are replaced, not added to",
    "orderBy": "with keys: of two rows the one with the greater value stays",
    "deleteWhen": "with keys: a condition on `source` under which the row is deleted",
    "txnAppId": "batch: who writes; with txnVersion, a write that is repeated is made once",
    "txnVersion": "batch: the number of the write, rising",
    "txnFromQuery": "batch, inside of foreachBatch: both of these from the streaming query",
}
# What Spark itself hands to a sink besides.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
_CODECS: Final = ("snappy", "zstd", "gzip", "lz4", "none")
_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)i?b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOptions:
    uri: str
    partition_by: tuple[str, ...] = ()
    merge_schema: bool = False
    target_bytes: int = TARGET_BYTES
    codec: str = "snappy"
    keys: tuple[str, ...] = ()
    order_by: str | None = None
    delete_when: str | None = None
    txn: tuple[str, int] | None = None
    txn_from_query: bool = False
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For the object store; there may be secrets among them."""


def read_options(given: Mapping[str, str]) -> DeltaOptions:
    """Raises `DeltaSinkError`, which names options, never what stands after `storage.`."""
    # Spark gives all names in small letters in some places; the store's are known in large ones.
    storage = {
        name[len(STORAGE) :].upper(): value
        for name, value in given.items()
        if name.lower().startswith(STORAGE)
    }
    known = {name.lower(): name for name in NAMES}
    plain: dict[str, str] = {}
    for name, value in given.items():
        lower = name.lower()
        if lower in known:
            plain[known[lower]] = value
        elif not lower.startswith(STORAGE) and lower not in _OF_SPARK:
            raise DeltaSinkError(f"option {name!r} is not known{_suggestion(lower, known)}")
    options = DeltaOptions(
        uri=_uri(plain),
        partition_by=_words(plain.get("partitionBy", "")),
        merge_schema=_flag(plain, "mergeSchema"),
        target_bytes=_size(plain, "targetFileSize", TARGET_BYTES),
        codec=_codec(plain),
        keys=_words(plain.get("keys", "")),
        order_by=plain.get("orderBy") or None,
        delete_when=plain.get("deleteWhen") or None,
        txn=_txn(plain),
        txn_from_query=_flag(plain, "txnFromQuery"),
        storage=storage,
    )
    if not options.keys and (options.order_by or options.delete_when):
        raise DeltaSinkError("options orderBy and deleteWhen need keys")
    return options


def _suggestion(name: str, known: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; is {known[close[0]]!r} meant?" if close else f"; there are {', '.join(NAMES)}"


def _uri(plain: Mapping[str, str]) -> str:
    path = plain.get("path", "")
    if not path:
        raise DeltaSinkError("the table's path is missing")
    local = local_path(path)
    if local is None:
        return path
    if "%" in local:
        # delta-rs 1.6 decodes the path in some places and not in others.
        raise DeltaSinkError(f"path={path}: the path of a table cannot have a % in it")
    return os.path.abspath(local)  # Tasks have another working directory than the driver.


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _flag(plain: Mapping[str, str], name: str) -> bool:
    text = plain.get(name, "false").lower()
    if text not in ("true", "false"):
        raise DeltaSinkError(f"{name}={plain[name]}: allowed: true, false")
    return text == "true"


def _size(plain: Mapping[str, str], name: str, default: int) -> int:
    if name not in plain:
        return default
    match = _SIZE.fullmatch(plain[name].strip())
    if match is None or int(match[1]) == 0:
        raise DeltaSinkError(f"{name}={plain[name]}: a number of bytes, or as 64mb")
    return int(match[1]) * _UNITS[match[2].lower()]


def _codec(plain: Mapping[str, str]) -> str:
    codec = plain.get("compression", "snappy").lower()
    if codec not in _CODECS:
        raise DeltaSinkError(f"compression={codec}: allowed: {', '.join(_CODECS)}")
    return codec


def _txn(plain: Mapping[str, str]) -> tuple[str, int] | None:
    app, version = plain.get("txnAppId"), plain.get("txnVersion")
    if app is None and version is None:
        return None
    if not app or version is None or not version.isdecimal():
        raise DeltaSinkError("txnAppId and txnVersion belong together; the version is a number")
    return app, int(version)
