"""Errors of the options of an embedded node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from svcnode import Node, OperatorOptions, SvcnodeError, asgi

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.wording.conftest import Snapshot

TOKEN = "a-token-of-some-length"
OPERATOR_OPTIONS: list[dict[str, Any]] = [
    {"token": "short"},
    {"token": 7},
    {"path": "status"},
    {"unrestricted": True, "token": TOKEN},
    {"trust_loopback": False},
    {"wsgi_streams": -1},
]
HISTORY_OPTIONS: list[dict[str, Any]] = [
    {"path": ""},
    {"path": "history.db", "max_age": "1m"},
    {"path": "history.db", "max_age": 90},
    {"path": "history.db", "maxsize": "1GiB"},
]
NOTIFY_OPTIONS: list[dict[str, Any]] = [
    {},
    {"webhook": "a.example"},
    {"webhok": "https://a.example"},
    {"webhook": "https://a.example", "services": "some"},
    {"webhook": "https://a.example", "group_wait": 5},
]


def error_of(call: Callable[..., object], *arguments: object, **options: object) -> str:
    try:
        call(*arguments, **options)
    except SvcnodeError as exc:
        return str(exc)
    raise AssertionError(f"no error: {options}")


def test_errors_of_options(snapshot: Snapshot) -> None:
    node = Node("validator-7", version="v1")
    arguments: list[dict[str, Any]] = [
        {"operator": 1},
        {"operator": True, "prefix": "/events"},
        {"operator": True, "fallback": print},
    ]
    lines = [
        *(error_of(OperatorOptions, **options) for options in OPERATOR_OPTIONS),
        *(error_of(asgi, node, **options) for options in arguments),
        *(error_of(node.record_history, **options) for options in HISTORY_OPTIONS),
        *(error_of(node.notify, **options) for options in NOTIFY_OPTIONS),
    ]

    async def record_too_late() -> str:
        async with node.probing():
            return error_of(node.record_history, "history.db")

    lines.append(asyncio.run(record_too_late()))
    snapshot("errors", "\n".join(lines))
