"""The network layer: listeners, connections, dispatch of requests, replies in request order.

A frame goes `frame_reader -> connection -> dispatch -> handler`, its reply
`reply_order -> output`. The kinds of answers are in `answers`.
"""

from suwi.net.answers import (
    NO_REPLY,
    Answer,
    Chunk,
    CloseConnection,
    Exclusive,
    Later,
    NoReply,
    Promise,
    Reply,
)
from suwi.net.connection import Connection, Dispatch
from suwi.net.dispatch import Dispatcher, Request
from suwi.net.limits import Limits
from suwi.net.listener import Budget, Listener

__all__ = [
    "NO_REPLY",
    "Answer",
    "Budget",
    "Chunk",
    "CloseConnection",
    "Connection",
    "Dispatch",
    "Dispatcher",
    "Exclusive",
    "Later",
    "Limits",
    "Listener",
    "NoReply",
    "Promise",
    "Reply",
    "Request",
]
