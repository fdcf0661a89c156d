"""The node that is judged: what it said of itself at first, and ways to ask it more."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.conformance.check import Finding, Skip
from svcnode.conformance.http_client import HttpClient, NoResponseError, RawResponse, RequestLine
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
from svcnode.conformance.parse import addressable_ids, format_response, parse_body, service_items

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from svcnode.conformance.http_client import RawConnection
    from svcnode.conformance.target import TargetUrl

MAX_SERVICES = 100  # of a longer list, the first so many are asked for their health
MAX_CONCURRENT_REQUESTS = 8  # requests that are under way together, where it is not the question how many may be
# A connection that finds no room to wait in is tried again by the system after 1 s, 3 s, 7 s and 15 s, and what was
# sent on it after up to 13 s: so do clients wait.
PARALLEL_TIMEOUT_S = 20.0
RESPOND_IN_TIME_FIX = "Answer in time: from what is known already, not by looking at a service while being asked."
CONNECT_BARRIER_S = 0.5  # how long connections wait for each other, where it is; a node may take them one after another


class Exchange(NamedTuple):
    request: RequestLine
    response: RawResponse

    def finding(self, expected: str, came: str = "") -> Finding:
        return Finding(self.request, expected, came or format_response(self.response))


def no_response_finding(exc: NoResponseError) -> Finding:
    return Finding(exc.request, "a whole HTTP answer", str(exc), RESPOND_IN_TIME_FIX if exc.is_timeout else "")


class NodeUnderTest:
    def __init__(self, target: TargetUrl, timeout_s: float, *, other_methods: bool = True) -> None:
        self._base = target.base
        self._client = HttpClient(target, timeout_s)
        self._patient_client = HttpClient(target, max(timeout_s, PARALLEL_TIMEOUT_S))
        self.other_methods = other_methods
        self._first_responses: dict[str, RawResponse | NoResponseError] = {}
        self._service_healths: dict[str, Exchange] | None = None
        self._unanswered: dict[str, NoResponseError] = {}
        self.unknown_id = f"svcnode-conform-{secrets.token_hex(6)}"

    # ---- asking

    def request(self, path: str, query: str = "", method: str = "GET") -> RequestLine:
        return RequestLine(method, f"{self._base}{path}{'?' if query else ''}{query}")

    async def get(self, path: str, query: str = "") -> Exchange:
        return await self.send(self.request(path, query))

    async def send(self, request: RequestLine) -> Exchange:
        return Exchange(request, await self._client.send(request))

    async def send_all(self, requests: Iterable[RequestLine]) -> list[Exchange]:
        """A few at a time, in the order of the requests; raises for the first that got no answer."""
        return _require_responses(await self.send_each(requests))

    async def send_each(
        self, requests: Iterable[RequestLine], *, keep_alive: bool = False
    ) -> list[Exchange | NoResponseError]:
        """The same, with what became of each; `is_kept` are connections that are not asked to be closed after it."""
        places = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

        async def ask(request: RequestLine) -> Exchange:
            async with places, self._client.connect(request) as connection:
                return Exchange(request, await connection.send(request, is_last=not keep_alive))

        return await _gather_outcomes(map(ask, requests))

    async def send_in_parallel(self, requests: Sequence[RequestLine]) -> list[Exchange | NoResponseError]:
        """Each on a connection of its own, and none is sent before all are connected, where the node lets them."""
        connected = 0
        all_connected = asyncio.Event()

        async def ask(request: RequestLine) -> Exchange:
            nonlocal connected
            async with self._patient_client.connect(request) as connection:
                connected += 1
                if connected == len(requests):
                    all_connected.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(CONNECT_BARRIER_S):
                        await all_connected.wait()
                return Exchange(request, await connection.send(request, is_last=True))

        return await _gather_outcomes(map(ask, requests))

    async def send_in_sequence(self, requests: Sequence[RequestLine]) -> list[Exchange]:
        """On one connection, for as long as the server lets it; raises when it ends without having said so."""
        done: list[Exchange] = []
        async with self._client.connect(requests[0]) as connection:
            for request in requests:
                done.append(await self._send_next(connection, request, is_first=not done))
                if not done[-1].response.is_keep_alive:
                    break
        return done

    async def _send_next(self, connection: RawConnection, request: RequestLine, *, is_first: bool) -> Exchange:
        try:
            return Exchange(request, await connection.send(request, is_last=False))
        except NoResponseError as exc:
            if is_first or exc.is_timeout:
                raise
            raise NoResponseError(request, f"on a connection that an earlier answer left open: {exc}") from exc

    # ---- what it says at first

    async def first_response(self, endpoint: str) -> Exchange:
        """The first answer of an endpoint, which several checks look at; raises `NoResponseError`."""
        place = STATIC_ENDPOINTS[endpoint]
        request = self.request(place.path)
        if endpoint not in self._first_responses:
            try:
                self._first_responses[endpoint] = await self._client.send(request)
            except NoResponseError as exc:
                self._first_responses[endpoint] = exc
        answer = self._first_responses[endpoint]
        if isinstance(answer, NoResponseError):
            raise answer
        return Exchange(request, answer)

    async def identity(self) -> tuple[Exchange, dict[str, Any]]:
        exchanged = await self.first_response(IDENTITY)
        value = parse_body(exchanged.response).value
        return exchanged, value if isinstance(value, dict) else {}

    async def services(self) -> tuple[Exchange, list[Any]]:
        """The items of the list, also of one that is not wrapped as it must be."""
        exchanged = await self.first_response(SERVICES)
        items = service_items(exchanged.response)
        if items is None:
            raise Skip("there is no list of services")
        return exchanged, items

    async def service_objects(self) -> tuple[Exchange, list[dict[str, Any]]]:
        """Those of the items that are objects; raises `Skip` when there are none."""
        exchanged, items = await self.services()
        objects = [item for item in items if isinstance(item, dict)]
        if not objects:
            raise Skip("no service is registered")
        return exchanged, objects

    async def service_ids(self) -> list[str]:
        """Those that can be asked for; raises `Skip` when there are none."""
        _, items = await self.service_objects()
        found = addressable_ids(items)[:MAX_SERVICES]
        if not found:
            raise Skip("no listed service has an id that could be asked for")
        return found

    async def service_healths(self) -> dict[str, Exchange]:
        """The health of every listed service, by its id; leaves out those that were deregistered meanwhile, and those
        that got no answer."""
        if self._service_healths is None:
            ids = await self.service_ids()
            outcomes = dict(zip(ids, await self.send_each(map(self.health_request, ids)), strict=True))
            asked = {one: outcome for one, outcome in outcomes.items() if isinstance(outcome, Exchange)}
            self._unanswered = {
                one: outcome for one, outcome in outcomes.items() if isinstance(outcome, NoResponseError)
            }
            if any(exchanged.response.code not in ALL_HEALTH_CODES for exchanged in asked.values()):
                again = await self.get(STATIC_ENDPOINTS[SERVICES].path)
                still = addressable_ids(service_items(again.response) or [])
                asked = {service_id: exchanged for service_id, exchanged in asked.items() if service_id in still}
            self._service_healths = asked
        return self._service_healths

    async def unanswered_services(self) -> dict[str, NoResponseError]:
        """Those of `healths` that got no answer."""
        await self.service_healths()
        return self._unanswered

    def health_request(self, service_id: str, query: str = "") -> RequestLine:
        return self.request(service_health_path(service_id), query)

    # ---- the endpoints that can be asked more

    async def working_endpoints(self) -> list[Endpoint]:
        """Those that answer a plain request as they must; the others have failed checks of their own."""
        found = [place for place in STATIC_ENDPOINTS.values() if await self._is_working(place)]
        sample = await self._sample_service_endpoint()
        return found if sample is None else [*found, sample]

    async def require_endpoints(self) -> list[Endpoint]:
        """The same; raises `Skip` when there are none."""
        if places := await self.working_endpoints():
            return places
        raise Skip("no endpoint answers as it must")

    async def require_endpoint(self, endpoint: str) -> Endpoint:
        for place in await self.working_endpoints():
            if place.name == endpoint:
                return place
        if endpoint == SERVICE_HEALTH:
            raise Skip("no service is registered whose health could be asked for")
        raise Skip(f"{STATIC_ENDPOINTS[endpoint].path} does not answer as it must without a version")

    async def _is_working(self, place: Endpoint) -> bool:
        return await self._first_code(place.name) in place.expected_codes

    async def has_no_endpoints(self) -> bool:
        """Whether nothing of the interface stands where it was looked for."""
        return all([await self._first_code(endpoint) == 404 for endpoint in STATIC_ENDPOINTS])

    async def has_no_services(self) -> bool:
        with suppress(Skip, NoResponseError):
            return not (await self.services())[1]
        return False

    async def _first_code(self, endpoint: str) -> int | None:
        with suppress(NoResponseError):
            return (await self.first_response(endpoint)).response.code
        return None

    async def _sample_service_endpoint(self) -> Endpoint | None:
        """The health of one service; of one with a plain id, if there is one."""
        try:
            healths = await self.service_healths()
        except (Skip, NoResponseError):
            return None
        good = [one for one, exchanged in healths.items() if exchanged.response.code in ALL_HEALTH_CODES]
        chosen = next((one for one in good if not needs_encoding(one)), next(iter(good), None))
        return None if chosen is None else Endpoint(SERVICE_HEALTH, service_health_path(chosen), ALL_HEALTH_CODES)


async def _gather_outcomes(asking: Iterable[Coroutine[None, None, Exchange]]) -> list[Exchange | NoResponseError]:
    """None is left under way, whatever comes of another."""
    done: list[Exchange | NoResponseError] = []
    for outcome in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, NoResponseError):
            raise outcome
        done.append(outcome)
    return done


def _require_responses(outcomes: Iterable[Exchange | NoResponseError]) -> list[Exchange]:
    answered = []
    for outcome in outcomes:
        if isinstance(outcome, NoResponseError):
            raise outcome
        answered.append(outcome)
    return answered
