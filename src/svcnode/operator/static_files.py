"""`/static/{name}`: the style sheet, scripts and icons of the page.

A file is served under its name with a hash of the contents of all files, as `page.0f3a….js`, so browsers may keep it
forever, and a page never runs scripts of two versions. The imports of the scripts are rewritten accordingly. Only the
listed files exist, so no path leads outside the folder.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING

from svcnode.api.spec import NOT_FOUND, Response
from svcnode.net.threads import call_in_pool

if TYPE_CHECKING:
    from svcnode.api.spec import Request
    from svcnode.operator.context import OperatorContext

_CSS, _JS, _SVG = "text/css; charset=utf-8", "text/javascript; charset=utf-8", "image/svg+xml"
STATIC_FILES = {
    "page.css": _CSS,
    "problems.css": _CSS,
    "timeline.css": _CSS,
    "report.css": _CSS,
    "page.js": _JS,
    "charts.js": _JS,
    "connection.js": _JS,
    "format.js": _JS,
    "groups.js": _JS,
    "keyboard.js": _JS,
    "live.js": _JS,
    "order.js": _JS,
    "panel.js": _JS,
    "rows.js": _JS,
    "sections.js": _JS,
    "state.js": _JS,
    "timeline.js": _JS,
    "view.js": _JS,
    "healthy.svg": _SVG,
    "partial.svg": _SVG,
    "unhealthy.svg": _SVG,
    "unknown.svg": _SVG,
}
_IMPORT = re.compile(rb'(?<=from "\./)[a-z]+\.js(?=")')


async def static_file(context: OperatorContext, request: Request, name: str) -> Response:
    return (await call_in_pool(_responses)).get(name, NOT_FOUND)


def static_name(name: str) -> str:
    """The name that a file is served under."""
    stem, _, extension = name.rpartition(".")
    return f"{stem}.{static_hash()}.{extension}"


@cache
def static_hash() -> str:
    return sha256(b"\0".join(map(read_static, STATIC_FILES))).hexdigest()[:16]


def read_static(name: str) -> bytes:
    return resources.files(__package__).joinpath("static", name).read_bytes()


@cache
def _responses() -> dict[str, Response]:
    return {static_name(name): _file_response(name) for name in STATIC_FILES}


def _file_response(name: str) -> Response:
    body = read_static(name)
    if name.endswith(".js"):
        body = _IMPORT.sub(lambda found: static_name(found[0].decode()).encode(), body)
    headers = (
        ("Content-Type", STATIC_FILES[name]),
        ("Cache-Control", "public, max-age=31536000, immutable"),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Length", str(len(body))),
    )
    return Response(200, body, headers)
