"""The node under test: its first responses, and the requests that checks send."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.conformance.http_client import HttpClient, NoResponseError, RequestLine
from svcnode.conformance.interface import (
    ALL_HEALTH_CODES,
    IDENTITY,
    SERVICE_HEALTH,
    SERVICES,
    STATIC_ENDPOINTS,
    Endpoint,
    needs_encoding,
    service_health_path,
)
from svcnode.conformance.response import RawResponse, addressable_ids, format_response, parse_body, service_items

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from svcnode.conformance.http_client import RawConnection
    from svcnode.conformance.target import NodeUnderTestUrl

MAX_SERVICES = 100  # in a longer list, only the first are checked
MAX_CONCURRENT_REQUESTS = 8  # except in the checks of concurrency
# If the backlog is full, the kernel retries a connection after 1 s, 3 s, 7 s and 15 s, and data on it after up to 13 s.
PARALLEL_TIMEOUT_S = 20.0
RESPOND_IN_TIME_FIX = "Answer from memory: check the services in the background, not during a request."
ALTERNATION_REQUESTS = 8
MAX_ALTERNATION_S = 2.0  # a slow node is compared by fewer responses
CONNECT_BARRIER_S = 0.5  # how long open connections wait for the others; a node may accept one at a time


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of a requirement; any HTTP client can reproduce it."""

    request: RequestLine
    expected: str
    actual: str
    fix: str = ""  # if the fix of the check does not apply


class Skip(Exception):  # noqa: N818  as unittest.SkipTest
    """The check does not apply to this node; the text says why."""


class Exchange(NamedTuple):
    request: RequestLine
    response: RawResponse

    def finding(self, expected: str, actual: str = "") -> Finding:
        return Finding(self.request, expected, actual or format_response(self.response))


def no_response_finding(exc: NoResponseError) -> Finding:
    return Finding(exc.request, "a complete HTTP response", str(exc), RESPOND_IN_TIME_FIX if exc.is_timeout else "")


class NodeUnderTest:
    def __init__(self, target: NodeUnderTestUrl, timeout_s: float, *, other_methods: bool = True) -> None:
        self._base = target.base
        self._client = HttpClient(target, timeout_s)
        self._patient_client = HttpClient(target, max(timeout_s, PARALLEL_TIMEOUT_S))
        self.other_methods = other_methods
        self._first_responses: dict[str, RawResponse | NoResponseError] = {}
        self._service_healths: dict[str, Exchange] | None = None
        self._unanswered: dict[str, NoResponseError] = {}
        self.unknown_id = f"svcnode-conform-{secrets.token_hex(6)}"

    # ---- requests

    def request(self, path: str, query: str = "", method: str = "GET") -> RequestLine:
        return RequestLine(method, f"{self._base}{path}{'?' if query else ''}{query}")

    async def get(self, path: str, query: str = "") -> Exchange:
        return await self.send(self.request(path, query))

    async def send(self, request: RequestLine) -> Exchange:
        return Exchange(request, await self._client.send(request))

    async def send_all(self, requests: Iterable[RequestLine]) -> list[Exchange]:
        """A few at a time, in the order of the requests; raises for the first without a response."""
        return _require_responses(await self.send_each(requests))

    async def send_each(
        self, requests: Iterable[RequestLine], *, keep_alive: bool = False
    ) -> list[Exchange | NoResponseError]:
        """As `send_all`, with the result of each. With `keep_alive`, requests leave the connection open."""
        limit = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

        async def send(request: RequestLine) -> Exchange:
            async with limit, self._client.connect(request) as connection:
                return Exchange(request, await connection.send(request, is_last=not keep_alive))

        return await _gather_outcomes(map(send, requests))

    async def send_in_parallel(self, requests: Sequence[RequestLine]) -> list[Exchange | NoResponseError]:
        """Each on its own connection; the requests are sent once all connections are open, if the node accepts them."""
        connected = 0
        all_connected = asyncio.Event()

        async def send(request: RequestLine) -> Exchange:
            nonlocal connected
            async with self._patient_client.connect(request) as connection:
                connected += 1
                if connected == len(requests):
                    all_connected.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(CONNECT_BARRIER_S):
                        await all_connected.wait()
                return Exchange(request, await connection.send(request, is_last=True))

        return await _gather_outcomes(map(send, requests))

    async def send_in_sequence(self, requests: Sequence[RequestLine]) -> list[Exchange]:
        """On one connection, until the server closes it; raises if it closes it without notice."""
        exchanges: list[Exchange] = []
        async with self._client.connect(requests[0]) as connection:
            for request in requests:
                exchanges.append(await self._send_next(connection, request, is_first=not exchanges))
                if not exchanges[-1].response.is_keep_alive:
                    break
        return exchanges

    async def _send_next(self, connection: RawConnection, request: RequestLine, *, is_first: bool) -> Exchange:
        try:
            return Exchange(request, await connection.send(request, is_last=False))
        except NoResponseError as exc:
            if is_first or exc.is_timeout:
                raise
            raise NoResponseError(request, f"on a connection that an earlier response left open: {exc}") from exc

    # ---- first responses

    async def first_response(self, endpoint: str) -> Exchange:
        """The first response of an endpoint, shared by several checks; raises `NoResponseError`."""
        request = self.request(STATIC_ENDPOINTS[endpoint].path)
        if endpoint not in self._first_responses:
            try:
                self._first_responses[endpoint] = await self._client.send(request)
            except NoResponseError as exc:
                self._first_responses[endpoint] = exc
        response = self._first_responses[endpoint]
        if isinstance(response, NoResponseError):
            raise response
        return Exchange(request, response)

    async def identity(self) -> tuple[Exchange, dict[str, Any]]:
        exchange = await self.first_response(IDENTITY)
        value = parse_body(exchange.response).value
        return exchange, value if isinstance(value, dict) else {}

    async def services(self) -> tuple[Exchange, list[Any]]:
        """The items of the list, also of a bare array."""
        exchange = await self.first_response(SERVICES)
        items = service_items(exchange.response)
        if items is None:
            raise Skip("there is no list of services")
        return exchange, items

    async def service_objects(self) -> tuple[Exchange, list[dict[str, Any]]]:
        """The items that are objects; raises `Skip` if there are none."""
        exchange, items = await self.services()
        objects = [item for item in items if isinstance(item, dict)]
        if not objects:
            raise Skip("no service is registered")
        return exchange, objects

    async def service_ids(self) -> list[str]:
        """The ids that a path can hold; raises `Skip` if there are none."""
        _, items = await self.service_objects()
        ids = addressable_ids(items)[:MAX_SERVICES]
        if not ids:
            raise Skip("no listed service has an id that a path can hold")
        return ids

    async def service_healths(self) -> dict[str, Exchange]:
        """The health of every listed service by id, without those deregistered since or without a response."""
        if self._service_healths is None:
            ids = await self.service_ids()
            outcomes = dict(zip(ids, await self.send_each(map(self.health_request, ids)), strict=True))
            healths = {service_id: outcome for service_id, outcome in outcomes.items() if isinstance(outcome, Exchange)}
            self._unanswered = {
                service_id: outcome for service_id, outcome in outcomes.items() if isinstance(outcome, NoResponseError)
            }
            if any(exchange.response.code not in ALL_HEALTH_CODES for exchange in healths.values()):
                services = await self.get(STATIC_ENDPOINTS[SERVICES].path)
                listed = addressable_ids(service_items(services.response) or [])
                healths = {service_id: exchange for service_id, exchange in healths.items() if service_id in listed}
            self._service_healths = healths
        return self._service_healths

    async def unanswered_services(self) -> dict[str, NoResponseError]:
        """The services of `service_healths` without a response."""
        await self.service_healths()
        return self._unanswered

    def health_request(self, service_id: str, query: str = "") -> RequestLine:
        return self.request(service_health_path(service_id), query)

    # ---- working endpoints

    async def working_endpoints(self) -> list[Endpoint]:
        """The endpoints that answer a plain request correctly; the others fail their own checks."""
        endpoints = [endpoint for endpoint in STATIC_ENDPOINTS.values() if await self._is_working(endpoint)]
        sample = await self._sample_service_endpoint()
        return endpoints if sample is None else [*endpoints, sample]

    async def require_endpoints(self) -> list[Endpoint]:
        """As `working_endpoints`; raises `Skip` if there are none."""
        if endpoints := await self.working_endpoints():
            return endpoints
        raise Skip("no endpoint answers correctly")

    async def require_endpoint(self, name: str) -> Endpoint:
        for endpoint in await self.working_endpoints():
            if endpoint.name == name:
                return endpoint
        if name == SERVICE_HEALTH:
            raise Skip("no service with a usable id is registered")
        raise Skip(f"{STATIC_ENDPOINTS[name].path} does not answer correctly without a version")

    async def _is_working(self, endpoint: Endpoint) -> bool:
        return await self._first_code(endpoint.name) in endpoint.expected_codes

    async def has_no_endpoints(self) -> bool:
        """Whether the prefix has none of the endpoints."""
        return all([await self._first_code(endpoint) == 404 for endpoint in STATIC_ENDPOINTS])

    async def has_only_identity_missing(self) -> bool:
        """Whether health and services answer correctly and the identity does not exist."""
        others = [endpoint for name, endpoint in STATIC_ENDPOINTS.items() if name != IDENTITY]
        return await self._first_code(IDENTITY) == 404 and all([await self._is_working(each) for each in others])

    async def alternating_endpoints(self) -> list[Endpoint]:
        """The endpoints whose responses return to an earlier one, as those of several workers do."""
        endpoints = [endpoint for endpoint in STATIC_ENDPOINTS.values() if await self._is_working(endpoint)]
        alternating = await asyncio.gather(*map(self._is_alternating, endpoints))
        return [endpoint for endpoint, is_alternating in zip(endpoints, alternating, strict=True) if is_alternating]

    async def _is_alternating(self, endpoint: Endpoint) -> bool:
        responses = []
        with suppress(NoResponseError, TimeoutError):
            async with asyncio.timeout(MAX_ALTERNATION_S):
                for _ in range(ALTERNATION_REQUESTS):
                    response = (await self.get(endpoint.path)).response
                    responses.append((response.code, response.body))
        return sum(1 for _ in groupby(responses)) > len(set(responses))

    async def has_no_services(self) -> bool:
        with suppress(Skip, NoResponseError):
            return not (await self.services())[1]
        return False

    async def _first_code(self, endpoint: str) -> int | None:
        with suppress(NoResponseError):
            return (await self.first_response(endpoint)).response.code
        return None

    async def _sample_service_endpoint(self) -> Endpoint | None:
        """The health of one service, with an unencoded id if possible."""
        try:
            healths = await self.service_healths()
        except (Skip, NoResponseError):
            return None
        ids = [service_id for service_id, exchange in healths.items() if exchange.response.code in ALL_HEALTH_CODES]
        sample = next((service_id for service_id in ids if not needs_encoding(service_id)), next(iter(ids), None))
        return None if sample is None else Endpoint(SERVICE_HEALTH, service_health_path(sample), ALL_HEALTH_CODES)


async def _gather_outcomes(requests: Iterable[Coroutine[None, None, Exchange]]) -> list[Exchange | NoResponseError]:
    """Waits for all of them, also if one raises."""
    outcomes: list[Exchange | NoResponseError] = []
    for outcome in await asyncio.gather(*requests, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, NoResponseError):
            raise outcome
        outcomes.append(outcome)
    return outcomes


def _require_responses(outcomes: Iterable[Exchange | NoResponseError]) -> list[Exchange]:
    exchanges = []
    for outcome in outcomes:
        if isinstance(outcome, NoResponseError):
            raise outcome
        exchanges.append(outcome)
    return exchanges
