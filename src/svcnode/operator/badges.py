"""`/badge/node.svg` and `/badge/{id}.svg`: one word about the node or a service, as a small picture for other pages.

`node` is the node. A service with that very id is `/badge/node.svg?service`.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

from svcnode.api.spec import NOT_FOUND, SERVICE_NOT_FOUND, Response, parse_query
from svcnode.core.model import Health, Status
from svcnode.core.text import one_line
from svcnode.operator.responses import typed_response

if TYPE_CHECKING:
    from svcnode.api.app import OperatorRequest
    from svcnode.operator.context import OperatorContext

NODE = "node"
SUFFIX = ".svg"
MAX_LABEL_CHARS = 40

# Dark enough for white letters on them. The word says the same.
_GREEN, _AMBER, _RED = "#1a7f37", "#9a6700", "#cf222e"
_COLOURS = {
    Status.UP: _GREEN,
    Status.INITIALIZING: _AMBER,
    Status.DOWN: _RED,
    Health.HEALTHY: _GREEN,
    Health.PARTIAL: _AMBER,
    Health.UNHEALTHY: _RED,
}
_HEALTH_TEXT = {Health.HEALTHY: "healthy", Health.PARTIAL: "partial", Health.UNHEALTHY: "unhealthy"}
_NARROW, _WIDE = "ijl|!.,:;'`()[]/\\ ftrI", "mwMW@%"


async def badge(context: OperatorContext, request: OperatorRequest, name: str) -> Response:
    if not name.endswith(SUFFIX):
        return NOT_FOUND
    service_id = name.removesuffix(SUFFIX)
    if service_id == NODE and "service" not in parse_query(request.query):
        health = context.node.health
        return _svg_response(context.node.identity.node_name, _HEALTH_TEXT[health], _COLOURS[health])
    found = context.node.find(service_id)
    if found is None:
        return SERVICE_NOT_FOUND
    service, state = found
    return _svg_response(service.name or service.id, state.status.value, _COLOURS[state.status])


def _svg_response(label: str, word: str, colour: str) -> Response:
    # Opened by itself, it is a document, and may then load and run nothing.
    policy = ("Content-Security-Policy", "default-src 'none'")
    return typed_response(svg(label, word, colour).encode(), "image/svg+xml", policy)


def svg(label: str, word: str, colour: str) -> str:
    said = escape(f"{one_line(label)}: {word}")
    shown = _truncate(one_line(label))
    label_px, word_px = _width_px(shown), _width_px(word)
    left_px, right_px = label_px + 12, word_px + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left_px + right_px}" height="20" role="img" '
        f'aria-label="{said}"><title>{said}</title>'
        f'<rect width="{left_px}" height="20" fill="#444"/>'
        f'<rect x="{left_px}" width="{right_px}" height="20" fill="{colour}"/>'
        '<g fill="#fff" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11" aria-hidden="true">'
        f"{_text(shown, 6, label_px)}{_text(word, left_px + 6, word_px)}</g></svg>"
    )


def _text(text: str, x: int, width_px: int) -> str:
    """Made to fit: which letters a reader has, and how wide they are, is not known here."""
    return f'<text x="{x}" y="14" textLength="{width_px}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_LABEL_CHARS else f"{text[: MAX_LABEL_CHARS - 1]}…"


def _width_px(text: str) -> int:
    return sum(map(_char_px, text))


def _char_px(char: str) -> int:
    if east_asian_width(char) in "WF":
        return 11
    if char in _NARROW:
        return 4
    return 10 if char in _WIDE else 7
