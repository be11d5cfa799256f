"""The format of log lines: time, level, logger, message, and fields as key=value."""

import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FieldFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        fields = "".join(f" {key}={_text(value)}" for key, value in facts.items())
        name = record.name.removeprefix("suwi.")
        line = f"{time} {record.levelname.lower()} {name}: {record.getMessage()}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _text(value: object) -> str:
    """A field's value as one word; quoted if it has spaces, quotes or unprintable characters."""
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    is_word = value.isprintable() and not any(c in value for c in ' ="')
    return value if is_word and value else json.dumps(value)


def set_up_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":
        # It has lines for every attempt; `metadata.zookeeper_connection` has one for every change.
        logging.getLogger("kazoo").setLevel(logging.ERROR)
