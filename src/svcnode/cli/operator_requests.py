"""Requests to the operator surface of a node, for the commands that show what only operators may see."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx2

from svcnode.cli.operator_url import TOKEN_VARIABLE
from svcnode.client.errors import translate_http_error
from svcnode.client.response_guard import ResponseGuard
from svcnode.core.errors import ClientError, ServiceNotFoundError, UnexpectedResponseError, UnreachableError
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from svcnode.cli.operator_url import OperatorUrl

    GetJson = Callable[[str], Awaitable[Any]]

TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 64 * 1024 * 1024


@asynccontextmanager
async def operator_requests(url: OperatorUrl) -> AsyncIterator[GetJson]:
    """A function that gets the JSON at a path of the operator surface, within one timeout for the block."""
    try:
        async with asyncio.timeout(TIMEOUT_S), _client(url) as client:
            yield partial(_get_json, client, url)
    except TimeoutError:
        raise UnreachableError(f"timeout: no complete response from {url.display} within {TIMEOUT_S:g} s") from None
    except httpx2.HTTPError as exc:
        error = translate_http_error(exc, url.display)
        if isinstance(error, UnreachableError):
            error = UnreachableError(f"{error}; check that svcnode serve runs there, or give another URL")
        raise error from exc


def _client(url: OperatorUrl) -> httpx2.AsyncClient:
    headers = {"User-Agent": f"svcnode/{__version__}", "Accept": "application/json", "Accept-Encoding": "identity"}
    if url.authorization:
        headers["Authorization"] = url.authorization
    transport = httpx2.AsyncHTTPTransport(uds=url.socket_path, verify=url.tls)
    return httpx2.AsyncClient(transport=transport, headers=headers, timeout=None, trust_env=False)


async def _get_json(client: httpx2.AsyncClient, url: OperatorUrl, path: str) -> Any:  # noqa: ANN401
    body, guard = bytearray(), ResponseGuard(url.display)
    request = client.stream("GET", f"{url.origin}{path}", extensions={"trace": guard.trace})
    with guard.activate():
        async with request as response:
            guard.has_response = True
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise UnexpectedResponseError(
                        f"{url.display}: response is larger than {MAX_RESPONSE_BYTES // 1024**2} MiB"
                    )
    document = _parse_json(bytes(body))
    if response.status_code == 200 and isinstance(document, dict):
        return document
    raise response_error(response.status_code, document, url, path.partition("?")[0])


def _parse_json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


async def fetch_problems(url: OperatorUrl) -> Any:  # noqa: ANN401  any JSON
    """The problems of a node from `/problems`, or from `/details`, which is longer, if its version is older."""
    async with operator_requests(url) as get_json:
        try:
            return await get_json("/problems")
        except _NotFoundError:
            return await get_json("/details")


# ---- errors


class _NotFoundError(UnexpectedResponseError):
    """The node has no such path."""


def response_error(code: int, document: object, url: OperatorUrl, path: str = "/details") -> ClientError:
    message = document.get("message") if isinstance(document, dict) else None
    match code, message:
        case 404, "Service not found":
            return ServiceNotFoundError("service not found")
        case 401, _ if url.authorization:
            return ClientError(
                f"{url.display}: invalid operator token; compare operator_token in the node's configuration"
            )
        case 401, _:
            return ClientError(f"{url.display}: operator token required; give --token, or set {TOKEN_VARIABLE}")
        case 403, _:
            return ClientError(
                f"{url.display}: serves details only on its own machine; run svcnode explain there, or set "
                "operator_token in [security] of its configuration and give it with --token"
            )
        case 404, _:
            return _NotFoundError(
                f"{url.display}: no {path}; the server is not svcnode, or serves operators on another address "
                "(operator_listen), or has operator = false"
            )
        case _:
            text = f": {message}" if isinstance(message, str) else ""
            return UnexpectedResponseError(f"{url.display}: unexpected response to {path}: {code}{text}")
