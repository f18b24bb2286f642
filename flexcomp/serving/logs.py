"""The log of a running server: lines of text for people, or JSON lines with one for each request."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any

from flexcomp.printable import printable

FORMATS = ("text", "json")
_LOG = "flexcomp.serving"
_FIELDS = "fields"  # attribute of a record


class Log:
    """Events, each with named values. Requests are events in JSON lines only."""

    def __init__(self, logger: logging.Logger | None = None, requests: bool = False) -> None:
        self._logger = logger or logging.getLogger(_LOG)
        self._requests = requests

    def info(self, event: str, **fields: Any) -> None:
        """Something happened."""
        self._logger.info(event, extra={_FIELDS: fields})

    def warning(self, event: str, **fields: Any) -> None:
        """Something went wrong that its cause is known of."""
        self._logger.warning(event, extra={_FIELDS: fields})

    def exception(self, event: str, **fields: Any) -> None:
        """A fault of the server's, with its origin."""
        self._logger.exception(event, extra={_FIELDS: fields})

    def request(self, **fields: Any) -> None:
        """A request was answered."""
        if self._requests:
            self.info("request", **fields)


def log_to_stderr(form: str) -> Log:
    """Send the log of the server and its event loop to stderr, in one of FORMATS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _Text())
    for name, level in ((_LOG, logging.INFO), ("asyncio", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
    return Log(logging.getLogger(_LOG), requests=form == "json")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_word(value)}" for name, value in getattr(record, _FIELDS, {}).items())
        text = f"{record.levelname.lower()}: {record.getMessage()}{fields}"
        return f"{text}\n{_lines(self.formatException(record.exc_info))}" if record.exc_info else text


def _word(value: Any) -> str:
    """A value that cannot be taken for two, or for a line of its own."""
    text = str(value)
    return text if text.isprintable() and " " not in text and text else json.dumps(text)


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
