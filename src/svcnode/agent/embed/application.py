"""What the node as an ASGI and as a WSGI application have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from svcnode.agent.embed.node import internals_of
from svcnode.api.spec import parse_prefixes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.agent.embed.node import Node
    from svcnode.agent.embed.operator_app import EmbeddedOperatorApp
    from svcnode.agent.embed.options import OperatorOptions

Application = TypeVar("Application")


class EmbeddedApplication(Generic[Application]):
    def __init__(
        self,
        node: Node,
        prefix: str | Sequence[str],
        fallback: Application | None,
        operator: bool | OperatorOptions,
        *,
        start: bool,
    ) -> None:
        internals = internals_of(node)
        self._node, self._checks = internals.state, internals.checks
        self._prefixes = parse_prefixes(prefix)
        self._fallback = fallback
        self._operator_app: EmbeddedOperatorApp | None = None
        self._should_start = start
        if operator is not False:
            from svcnode.agent.embed.operator_app import make_operator_app

            self._operator_app = make_operator_app(node, operator, self._prefixes, has_fallback=fallback is not None)
