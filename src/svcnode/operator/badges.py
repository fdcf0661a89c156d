"""`/badge/node.svg` and `/badge/{id}.svg`: the health of the node or the status of a service as a small SVG image.

If a service has the id `node`, its badge is at `/badge/node.svg?service`.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

from svcnode.api.spec import NOT_FOUND, SERVICE_NOT_FOUND, Response, make_response, parse_query
from svcnode.core.model import Health, Status
from svcnode.core.text import one_line, truncate

if TYPE_CHECKING:
    from svcnode.api.spec import Request
    from svcnode.operator.context import OperatorContext

NODE = "node"
SUFFIX = ".svg"
MAX_LABEL_CHARS = 40

# Dark enough for white text.
_GREEN, _AMBER, _RED = "#1a7f37", "#9a6700", "#cf222e"
_COLOURS = {
    Status.UP: _GREEN,
    Status.INITIALIZING: _AMBER,
    Status.DOWN: _RED,
    Health.HEALTHY: _GREEN,
    Health.PARTIAL: _AMBER,
    Health.UNHEALTHY: _RED,
}
_NARROW, _WIDE = "ijl|!.,:;'`()[]/\\ ftrI", "mwMW@%"


async def badge(context: OperatorContext, request: Request, name: str) -> Response:
    if not name.endswith(SUFFIX):
        return NOT_FOUND
    service_id = name.removesuffix(SUFFIX)
    if service_id == NODE and "service" not in parse_query(request.query):
        health = context.node.health
        return _svg_response(context.node.identity.node_name, health.label, _COLOURS[health])
    match = context.node.find(service_id)
    if match is None:
        return SERVICE_NOT_FOUND
    service, state = match
    return _svg_response(service.name or service.id, state.status.value, _COLOURS[state.status])


def _svg_response(label: str, value: str, colour: str) -> Response:
    # An SVG opened on its own is a document; the policy keeps it from loading or running anything.
    policy = ("Content-Security-Policy", "default-src 'none'")
    return make_response(200, svg(label, value, colour).encode(), policy, content_type="image/svg+xml")


def svg(label: str, value: str, colour: str) -> str:
    full_text = escape(f"{one_line(label)}: {value}")
    short_label = truncate(one_line(label), MAX_LABEL_CHARS)
    label_px, value_px = _width_px(short_label), _width_px(value)
    left_px, right_px = label_px + 12, value_px + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left_px + right_px}" height="20" role="img" '
        f'aria-label="{full_text}"><title>{full_text}</title>'
        f'<rect width="{left_px}" height="20" fill="#444"/>'
        f'<rect x="{left_px}" width="{right_px}" height="20" fill="{colour}"/>'
        '<g fill="#fff" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11" aria-hidden="true">'
        f"{_text(short_label, 6, label_px)}{_text(value, left_px + 6, value_px)}</g></svg>"
    )


def _text(text: str, x: int, width_px: int) -> str:
    """Stretched to its estimated width: the fonts of the reader are not known here."""
    return f'<text x="{x}" y="14" textLength="{width_px}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'


def _width_px(text: str) -> int:
    return sum(map(_char_px, text))


def _char_px(char: str) -> int:
    if east_asian_width(char) in "WF":
        return 11
    if char in _NARROW:
        return 4
    return 10 if char in _WIDE else 7
