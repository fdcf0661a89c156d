"""The problems of a node, and which are acknowledged, for `svcnode status` and `svcnode watch`.

The interface does not tell them. So nodes on this machine are asked for them, which need no token, and the node of the
configuration, whose token this machine may know. If a node does not tell its problems, only the statuses of the
interface are shown; if its answer takes too long, a remark says so.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from svcnode.cli.operator_requests import fetch_problems
from svcnode.cli.operator_url import node_address, operator_url_from
from svcnode.core.errors import SvcnodeError
from svcnode.core.problems import document_from_details
from svcnode.operator.auth import is_local_address

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from svcnode.cli.operator_url import OperatorUrl
    from svcnode.cli.terminal.snapshot import NodeSnapshot

TIMEOUT_S = 5.0  # a busy node with thousands of services that are Down may need seconds
_FIELDS = ("at", "until", "by", "reason")


async def with_problems(
    snapshots: Iterable[NodeSnapshot], *, ca: str | None, config: Path | None, is_configured: bool
) -> list[NodeSnapshot]:
    """`is_configured`: the only node is that of the configuration file."""

    async def add(snapshot: NodeSnapshot) -> NodeSnapshot:
        if not snapshot.has_problem:
            return snapshot
        url = None if is_configured else snapshot.url
        try:
            document = await _fetch(argparse.Namespace(url=url, token=None, ca=ca, config=config))
        except TimeoutError:
            return replace(snapshot, problems_remark=f"its problems could not be read within {TIMEOUT_S:g} s")
        return snapshot if document is None else _with_document(snapshot, document)

    return await asyncio.gather(*map(add, snapshots))


def _operator_url(arguments: argparse.Namespace) -> OperatorUrl:
    """A token is sent only to the node of the configuration."""
    url = operator_url_from(arguments)
    return url if arguments.url is None else replace(url, authorization="")


async def _fetch(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """None if the node does not tell its problems to this machine. Raises TimeoutError."""
    try:
        if arguments.url is not None and not is_local_address(node_address(arguments.url)):
            return None
        async with asyncio.timeout(TIMEOUT_S):
            document = await fetch_problems(_operator_url(arguments))
        return dict(document) if "problems" in document else document_from_details(document)
    except TimeoutError:
        raise
    except (SvcnodeError, OSError, AttributeError, KeyError, TypeError, ValueError):
        return None


def _with_document(snapshot: NodeSnapshot, document: dict[str, Any]) -> NodeSnapshot:
    try:
        made = {None: document["node"].get("acknowledged"), **document["acknowledged"]}
        acknowledged = {key: {field: one[field] for field in _FIELDS} for key, one in made.items() if one}
    except (AttributeError, KeyError, TypeError):  # JSON of another shape
        return snapshot
    return replace(snapshot, problems=document, acknowledged=acknowledged)
