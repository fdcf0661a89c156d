"""Which problems are acknowledged, for `svcnode status`.

The interface does not say it. So nodes on this machine, which need no token, are asked for their details; and the node
of the configuration, whose token this machine may know. Without an answer, nothing is shown as acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from svcnode.cli.explain import fetch_details
from svcnode.cli.operator_url import node_address, operator_url_from
from svcnode.core.errors import SvcnodeError
from svcnode.operator.auth import is_local_address

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from svcnode.cli.operator_url import OperatorUrl
    from svcnode.cli.terminal.snapshot import NodeSnapshot

TIMEOUT_S = 2.0
_FIELDS = ("at", "until", "by", "reason")


async def with_acknowledgements(
    snapshots: Iterable[NodeSnapshot], *, ca: str | None, config: Path | None, is_configured: bool
) -> list[NodeSnapshot]:
    """`is_configured`: the only node is that of the configuration file."""

    async def add(snapshot: NodeSnapshot) -> NodeSnapshot:
        if not snapshot.has_problem:
            return snapshot
        url = None if is_configured else snapshot.url
        arguments = argparse.Namespace(url=url, token=None, ca=ca, config=config)
        return replace(snapshot, acknowledged=await _acknowledged(arguments))

    return await asyncio.gather(*map(add, snapshots))


def _operator_url(arguments: argparse.Namespace) -> OperatorUrl:
    """A token is sent only to the node of the configuration."""
    url = operator_url_from(arguments)
    return url if arguments.url is None else replace(url, authorization="")


async def _acknowledged(arguments: argparse.Namespace) -> dict[str | None, dict[str, Any]]:
    try:
        if arguments.url is not None and not is_local_address(node_address(arguments.url)):
            return {}
        async with asyncio.timeout(TIMEOUT_S):
            details = await fetch_details(_operator_url(arguments), None)
        documents = {None: details["node"], **{service["id"]: service for service in details["services"]}}
        made = {key: document.get("acknowledged") for key, document in documents.items()}  # an older node has none
        return {key: {field: one[field] for field in _FIELDS} for key, one in made.items() if one}
    except (SvcnodeError, OSError, AttributeError, KeyError, TypeError, ValueError):
        return {}
