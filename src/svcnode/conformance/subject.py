"""The node that is judged: what it said of itself at first, and ways to ask it more."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.conformance.check import Finding, NotJudgedError
from svcnode.conformance.exchange import Answer, NoAnswerError, Request, Wire
from svcnode.conformance.interface import (
    ANY_HEALTH,
    FIXED,
    IDENTITY,
    SERVICE_HEALTH,
    SERVICES,
    Place,
    health_path,
    needs_encoding,
)
from svcnode.conformance.reading import items_of, parsed, told, usable_ids

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from svcnode.conformance.exchange import Connection
    from svcnode.conformance.target import Target

MAX_SERVICES = 100  # of a longer list, the first so many are asked for their health
AT_ONCE = 8  # requests that are under way together, where it is not the question how many may be
# A connection that finds no room to wait in is tried again by the system after 1 s, 3 s, 7 s and 15 s, and what was
# sent on it after up to 13 s: so do clients wait.
CROWD_S = 20.0
IN_TIME = "Answer in time: from what is known already, not by looking at a service while being asked."
GATHERING_S = 0.5  # how long connections wait for each other, where it is; a node may take them one after another


class Exchanged(NamedTuple):
    request: Request
    answer: Answer

    def finding(self, expected: str, came: str = "") -> Finding:
        return Finding(self.request, expected, came or told(self.answer))


def no_answer(exc: NoAnswerError) -> Finding:
    return Finding(exc.request, "a whole HTTP answer", str(exc), IN_TIME if exc.is_silence else "")


class Subject:
    def __init__(self, target: Target, timeout_s: float, *, other_methods: bool = True) -> None:
        self._base = target.base
        self._wire = Wire(target, timeout_s)
        self._patient_wire = Wire(target, max(timeout_s, CROWD_S))
        self.other_methods = other_methods
        self._first: dict[str, Answer | NoAnswerError] = {}
        self._healths: dict[str, Exchanged] | None = None
        self._unanswered: dict[str, NoAnswerError] = {}
        self.unknown_id = f"svcnode-conform-{secrets.token_hex(6)}"

    # ---- asking

    def request(self, path: str, query: str = "", method: str = "GET") -> Request:
        return Request(method, f"{self._base}{path}{'?' if query else ''}{query}")

    async def get(self, path: str, query: str = "") -> Exchanged:
        return await self.ask(self.request(path, query))

    async def ask(self, request: Request) -> Exchanged:
        return Exchanged(request, await self._wire.ask(request))

    async def ask_all(self, requests: Iterable[Request]) -> list[Exchanged]:
        """A few at a time, in the order of the requests; raises for the first that got no answer."""
        return _all_answered(await self.ask_each(requests))

    async def ask_each(self, requests: Iterable[Request], *, is_kept: bool = False) -> list[Exchanged | NoAnswerError]:
        """The same, with what became of each; `is_kept` are connections that are not asked to be closed after it."""
        places = asyncio.Semaphore(AT_ONCE)

        async def ask(request: Request) -> Exchanged:
            async with places, self._wire.connected(request) as connection:
                return Exchanged(request, await connection.ask(request, is_last=not is_kept))

        return await _outcomes(map(ask, requests))

    async def ask_at_once(self, requests: Sequence[Request]) -> list[Exchanged | NoAnswerError]:
        """Each on a connection of its own, and none is sent before all are connected, where the node lets them."""
        connected = 0
        all_connected = asyncio.Event()

        async def ask(request: Request) -> Exchanged:
            nonlocal connected
            async with self._patient_wire.connected(request) as connection:
                connected += 1
                if connected == len(requests):
                    all_connected.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(GATHERING_S):
                        await all_connected.wait()
                return Exchanged(request, await connection.ask(request, is_last=True))

        return await _outcomes(map(ask, requests))

    async def ask_in_turn(self, requests: Sequence[Request]) -> list[Exchanged]:
        """On one connection, for as long as the server lets it; raises when it ends without having said so."""
        done: list[Exchanged] = []
        async with self._wire.connected(requests[0]) as connection:
            for request in requests:
                done.append(await self._asked_next(connection, request, is_first=not done))
                if not done[-1].answer.is_kept:
                    break
        return done

    async def _asked_next(self, connection: Connection, request: Request, *, is_first: bool) -> Exchanged:
        try:
            return Exchanged(request, await connection.ask(request, is_last=False))
        except NoAnswerError as exc:
            if is_first or exc.is_silence:
                raise
            raise NoAnswerError(request, f"on a connection that an earlier answer left open: {exc}") from exc

    # ---- what it says at first

    async def first(self, endpoint: str) -> Exchanged:
        """The first answer of an endpoint, which several checks look at; raises `NoAnswerError`."""
        place = FIXED[endpoint]
        request = self.request(place.path)
        if endpoint not in self._first:
            try:
                self._first[endpoint] = await self._wire.ask(request)
            except NoAnswerError as exc:
                self._first[endpoint] = exc
        answer = self._first[endpoint]
        if isinstance(answer, NoAnswerError):
            raise answer
        return Exchanged(request, answer)

    async def identity(self) -> tuple[Exchanged, dict[str, Any]]:
        exchanged = await self.first(IDENTITY)
        value = parsed(exchanged.answer).value
        return exchanged, value if isinstance(value, dict) else {}

    async def services(self) -> tuple[Exchanged, list[Any]]:
        """The items of the list, also of one that is not wrapped as it must be."""
        exchanged = await self.first(SERVICES)
        items = items_of(exchanged.answer)
        if items is None:
            raise NotJudgedError("there is no list of services")
        return exchanged, items

    async def described(self) -> tuple[Exchanged, list[dict[str, Any]]]:
        """Those of the items that are objects; raises `NotJudgedError` when there are none."""
        exchanged, items = await self.services()
        objects = [item for item in items if isinstance(item, dict)]
        if not objects:
            raise NotJudgedError("no service is registered")
        return exchanged, objects

    async def ids(self) -> list[str]:
        """Those that can be asked for; raises `NotJudgedError` when there are none."""
        _, items = await self.described()
        found = usable_ids(items)[:MAX_SERVICES]
        if not found:
            raise NotJudgedError("no listed service has an id that could be asked for")
        return found

    async def healths(self) -> dict[str, Exchanged]:
        """The health of every listed service, by its id; leaves out those that were deregistered meanwhile, and those
        that got no answer."""
        if self._healths is None:
            ids = await self.ids()
            outcomes = dict(zip(ids, await self.ask_each(map(self.health_request, ids)), strict=True))
            asked = {one: outcome for one, outcome in outcomes.items() if isinstance(outcome, Exchanged)}
            self._unanswered = {one: outcome for one, outcome in outcomes.items() if isinstance(outcome, NoAnswerError)}
            if any(exchanged.answer.code not in ANY_HEALTH for exchanged in asked.values()):
                again = await self.get(FIXED[SERVICES].path)
                still = usable_ids(items_of(again.answer) or [])
                asked = {service_id: exchanged for service_id, exchanged in asked.items() if service_id in still}
            self._healths = asked
        return self._healths

    async def unanswered_healths(self) -> dict[str, NoAnswerError]:
        """Those of `healths` that got no answer."""
        await self.healths()
        return self._unanswered

    def health_request(self, service_id: str, query: str = "") -> Request:
        return self.request(health_path(service_id), query)

    # ---- the endpoints that can be asked more

    async def places(self) -> list[Place]:
        """Those that answer a plain request as they must; the others have failed checks of their own."""
        found = [place for place in FIXED.values() if await self._answers(place)]
        sample = await self._sample()
        return found if sample is None else [*found, sample]

    async def usable_places(self) -> list[Place]:
        """The same; raises `NotJudgedError` when there are none."""
        if places := await self.places():
            return places
        raise NotJudgedError("no endpoint answers as it must")

    async def place(self, endpoint: str) -> Place:
        for place in await self.places():
            if place.endpoint == endpoint:
                return place
        if endpoint == SERVICE_HEALTH:
            raise NotJudgedError("no service is registered whose health could be asked for")
        raise NotJudgedError(f"{FIXED[endpoint].path} does not answer as it must without a version")

    async def _answers(self, place: Place) -> bool:
        return await self._code(place.endpoint) in place.codes

    async def is_nowhere(self) -> bool:
        """Whether nothing of the interface stands where it was looked for."""
        return all([await self._code(endpoint) == 404 for endpoint in FIXED])

    async def lists_nothing(self) -> bool:
        with suppress(NotJudgedError, NoAnswerError):
            return not (await self.services())[1]
        return False

    async def _code(self, endpoint: str) -> int | None:
        with suppress(NoAnswerError):
            return (await self.first(endpoint)).answer.code
        return None

    async def _sample(self) -> Place | None:
        """The health of one service; of one with a plain id, if there is one."""
        try:
            healths = await self.healths()
        except (NotJudgedError, NoAnswerError):
            return None
        good = [one for one, exchanged in healths.items() if exchanged.answer.code in ANY_HEALTH]
        chosen = next((one for one in good if not needs_encoding(one)), next(iter(good), None))
        return None if chosen is None else Place(SERVICE_HEALTH, health_path(chosen), ANY_HEALTH)


async def _outcomes(asking: Iterable[Coroutine[None, None, Exchanged]]) -> list[Exchanged | NoAnswerError]:
    """None is left under way, whatever comes of another."""
    done: list[Exchanged | NoAnswerError] = []
    for outcome in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, NoAnswerError):
            raise outcome
        done.append(outcome)
    return done


def _all_answered(outcomes: Iterable[Exchanged | NoAnswerError]) -> list[Exchanged]:
    answered = []
    for outcome in outcomes:
        if isinstance(outcome, NoAnswerError):
            raise outcome
        answered.append(outcome)
    return answered
