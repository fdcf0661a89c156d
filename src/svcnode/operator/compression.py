"""Compresses the larger responses with gzip if the client accepts it.

Every reader of a response that is shared, such as the page, gets the same bytes, so they are compressed once. Event
streams are not compressed: their messages are short.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.api.spec import Request, Response
    from svcnode.operator.context import OperatorContext

MIN_BYTES = 1024
LEVEL = 6
GZIP_FORMAT = 16 + zlib.MAX_WBITS
_VARY = ("Vary", "Accept-Encoding")


async def compressed(context: OperatorContext, request: Request, response: Response) -> Response:
    if len(response.body) < MIN_BYTES:
        return response
    if not accepts_gzip(request.headers.get(b"accept-encoding", b"")):
        return replace(response, headers=(*response.headers, _VARY))
    # The key is the body itself: its hash is computed once, and equal bodies have equal results.
    compress = partial(zlib.compress, response.body, LEVEL, wbits=GZIP_FORMAT)
    body = await context.single_flight.get(("gzip", response.body), compress)
    headers = tuple(header for header in response.headers if header[0] != "Content-Length")
    more = ("Content-Encoding", "gzip"), _VARY, ("Content-Length", str(len(body)))
    return replace(response, body=body, headers=(*headers, *more))


def accepts_gzip(accept_encoding: bytes) -> bool:
    """Whether the header names gzip with a weight other than 0. `*` alone does not count: no browser sends it."""
    for part in accept_encoding.lower().split(b","):
        coding, _, parameters = part.partition(b";")
        if coding.strip() in (b"gzip", b"x-gzip"):
            weight = parameters.replace(b" ", b"").removeprefix(b"q=")
            return not parameters or weight.strip(b"0.") != b""
    return False
