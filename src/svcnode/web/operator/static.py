"""`/static/…`: what the page is made of. Only what is listed here is served, so no path can lead anywhere else."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from svcnode.spec import NOT_FOUND, Answer
from svcnode.web.operator.answering import typed_answer

if TYPE_CHECKING:
    from svcnode.web.operator.desk import Desk
    from svcnode.web.visits import Visit

_CSS, _JS, _SVG = "text/css; charset=utf-8", "text/javascript; charset=utf-8", "image/svg+xml"
FILES = {
    "page.css": _CSS,
    "page.js": _JS,
    "charts.js": _JS,
    "health.js": _JS,
    "live.js": _JS,
    "panel.js": _JS,
    "rows.js": _JS,
    "state.js": _JS,
    "tip.js": _JS,
    "words.js": _JS,
    "healthy.svg": _SVG,
    "partial.svg": _SVG,
    "unhealthy.svg": _SVG,
    "unknown.svg": _SVG,
}


async def static_file(desk: Desk, visit: Visit, name: str) -> Answer:
    return await asyncio.to_thread(_answer, name) if name in FILES else NOT_FOUND


@cache
def _answer(name: str) -> Answer:
    return typed_answer(read_static(name), FILES[name])


def read_static(name: str) -> bytes:
    return resources.files(__package__).joinpath("static", name).read_bytes()
