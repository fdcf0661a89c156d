"""What `svcnode explain` does: asks a node for details, and tells them in plain words."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2

from svcnode.cli.showing import show
from svcnode.cli.whereabouts import TOKEN_VARIABLE, place_from
from svcnode.client.connections import Connection
from svcnode.client.faults import translated
from svcnode.client.loops import PromptLoop
from svcnode.core.errors import (
    ClientError,
    InvalidValueError,
    NotThisInterfaceError,
    ServiceNotFoundError,
    UnreachableError,
)
from svcnode.core.model import Health, Status
from svcnode.core.wording import first_of, nearest
from svcnode.terminal.explain.nodes import node_explained
from svcnode.terminal.explain.services import service_explained
from svcnode.version import __version__

if TYPE_CHECKING:
    import argparse

    from svcnode.cli.whereabouts import Place
    from svcnode.terminal.explain.explanation import Explanation

TIMEOUT_S = 10.0
MAX_BYTES = 64 * 1024 * 1024
LISTED_IDS = 20
_EXIT_CODES = {
    Status.UP: 0,
    Status.INITIALIZING: 1,
    Status.DOWN: 2,
    Health.HEALTHY: 0,
    Health.PARTIAL: 1,
    Health.UNHEALTHY: 2,
}


def show_explanation(arguments: argparse.Namespace) -> int:
    place = place_from(arguments)
    with asyncio.Runner(loop_factory=PromptLoop) as runner:
        told = runner.run(_told(place, arguments.id))
    try:
        explanation = node_explained(told) if arguments.id is None else service_explained(told)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise NotThisInterfaceError(
            f"what {place.shown} tells is not what this svcnode ({__version__}) understands; is it another version?"
        ) from exc
    with suppress(BrokenPipeError):
        if arguments.json:
            show(json.dumps(told), sys.stdout)
        else:
            _draw(explanation)
    return _EXIT_CODES[explanation.finding]


def _draw(explanation: Explanation) -> None:
    if sys.stdout is not None and sys.stdout.isatty():
        from svcnode.terminal.explain.drawing import draw

        draw(explanation, sys.stdout)
    else:
        show("\n".join(explanation.lines), sys.stdout)


# ---- asking


async def _told(place: Place, service_id: str | None) -> Any:  # noqa: ANN401  whatever JSON can hold
    try:
        async with asyncio.timeout(TIMEOUT_S), _client(place) as client:
            if service_id is None:
                return await _asked(client, place, "/details")
            try:
                return await _asked(client, place, f"/details/{_segment(service_id)}")
            except ServiceNotFoundError:
                known = await _asked(client, place, "/details")
                raise ServiceNotFoundError(_unknown(service_id, known, place)) from None
    except TimeoutError:
        raise UnreachableError(f"no whole answer from {place.shown} within {TIMEOUT_S:g} s") from None
    except httpx2.HTTPError as exc:
        error = translated(exc, place.shown)
        if isinstance(error, UnreachableError):
            joint = " Is" if str(error).endswith("?") else "; is"
            error = UnreachableError(f"{error}{joint} svcnode serve running there? --url names another address")
        raise error from exc


def _client(place: Place) -> httpx2.AsyncClient:
    headers = {"User-Agent": f"svcnode/{__version__}", "Accept": "application/json", "Accept-Encoding": "identity"}
    if place.authorization:
        headers["Authorization"] = place.authorization
    transport = httpx2.AsyncHTTPTransport(uds=place.socket_path, verify=place.tls)
    return httpx2.AsyncClient(transport=transport, headers=headers, timeout=None, trust_env=False)


async def _asked(client: httpx2.AsyncClient, place: Place, path: str) -> Any:  # noqa: ANN401
    body, connection = bytearray(), Connection(place.shown)
    asking = client.stream("GET", f"{place.origin}{path}", extensions={"trace": connection.trace})
    with connection.taken():
        async with asking as response:
            connection.has_answered = True
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise NotThisInterfaceError(f"got more than {MAX_BYTES // 1024**2} MiB from {place.shown}")
    document = _document(bytes(body))
    if response.status_code == 200 and isinstance(document, dict):
        return document
    raise _refusal(response.status_code, document, place)


def _document(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _segment(service_id: str) -> str:
    """An id as one segment of a path; dots alone would name another place."""
    try:
        segment = quote(service_id, safe="")
    except UnicodeEncodeError:
        raise InvalidValueError(f"{service_id!r} is no service id: it cannot stand in a URL") from None
    if not segment:
        raise InvalidValueError("a service id must not be empty")
    return segment if segment.strip(".") else segment.replace(".", "%2E")


# ---- what came instead


def _refusal(code: int, document: object, place: Place) -> ClientError:
    message = document.get("message") if isinstance(document, dict) else None
    match code, message:
        case 404, "Service not found":
            return ServiceNotFoundError("no such service")
        case 401, _ if place.authorization:
            return ClientError(f"{place.shown} does not take this token; its operator_token is in its configuration")
        case 401, _:
            return ClientError(f"{place.shown} asks for its operator token: give --token, or set {TOKEN_VARIABLE}")
        case 403, _:
            return ClientError(
                f"{place.shown} tells nobody beyond its own machine: ask there, or set operator_token in [security] of "
                "its configuration and give it with --token"
            )
        case 404, _:
            return NotThisInterfaceError(
                f"{place.shown} answers, but has no /details: it is no svcnode, or it shows them elsewhere "
                "(operator_listen) or not at all (operator = false)"
            )
        case _:
            said = f": {message}" if isinstance(message, str) else ""
            return NotThisInterfaceError(f"expected what svcnode tells at /details, got {code}{said}: {place.shown}")


def _unknown(service_id: str, known: Any, place: Place) -> str:  # noqa: ANN401
    services = known.get("services") if isinstance(known, dict) else None
    ids = [str(service.get("id")) for service in services or () if isinstance(service, dict)]
    near = nearest(service_id, ids)
    hint = f'; did you mean "{near}"?' if near else "."
    listed = first_of(ids, LISTED_IDS) or "none"
    return f'no service has the id "{service_id}" at {place.shown}{hint} It has: {listed}'
