"""Pushes: reports over TCP, for jobs and programs on other machines.

    POST /push/{id}         Up
    POST /push/{id}/start   a run has started
    POST /push/{id}/fail    Down
    POST /push/{id}/{n}     the exit status of the run: 0 is Up, any other number is Down
    POST /push/{id}/log     nothing changes; the body is logged

If the service allows it, GET and HEAD work too. A start and an end with the same UUID in `?rid=` belong to one run.

The body is the reason. Parameters and a body of JSON can also say what has happened, in the words of several tools
(push_words.py). Each service has its own token. A request without it is answered as if the path did not exist,
so that a client cannot find out which services there are. Like a report through the control socket, a push is stored
before its response is sent.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from svcnode.api.app import authorization_token
from svcnode.api.spec import NOT_FOUND, Response, error_response, make_response, split_path
from svcnode.control.changes import ChangeRequest, run_path, status_path
from svcnode.control.push_words import Report, read_push
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import ControlError
from svcnode.core.text import excerpt
from svcnode.node.definition import PushAccess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from svcnode.api.spec import Request
    from svcnode.node.node_state import NodeState

log = logging.getLogger("svcnode.push")

PATH = b"/push/"
RATE_PER_S, BURST = 10.0, 20.0  # per service
MAX_LIMITS = 1000  # kept, of services at rest
ACCEPTED = make_response(204)
TOO_MANY = error_response(429, "Too many pushes for this service; retry in 1 second", ("Retry-After", "1"))
NOT_STORED = error_response(503, "The push could not be stored; retry in 10 seconds", ("Retry-After", "10"))
_EXIT_STATUS = re.compile("-?[0-9]{1,10}")
_UUID_DIGITS = re.compile(b"[0-9a-f]{32}")


class _RefusedError(Exception):
    def __init__(self, response: Response, cause: str, text: str) -> None:
        super().__init__(text)
        self.response, self.cause = response, cause


class PushApp:
    """`change` stores and applies a change, and raises `ControlError`. `refused` counts refused pushes by cause."""

    def __init__(
        self,
        node: NodeState,
        access_of: Callable[[str], PushAccess | None],
        change: Callable[[ChangeRequest], Awaitable[None]],
        refused: Counter[str] | None = None,
    ) -> None:
        """`access_of` a service: None if it does not exist, or receives no pushes."""
        self._access_of = access_of
        self._node = node
        self._change = change
        self._refused = Counter[str]() if refused is None else refused
        self._no_access = PushAccess(secrets.token_hex())  # to the services that do not exist
        self._limits: dict[str, RateLimit] = {}  # of the services that are not at rest

    def matches(self, path: bytes) -> bool:
        return path.startswith(PATH)

    def rejection(self, request: Request) -> Response | None:
        return None

    async def handle(self, request: Request) -> Response:
        service_id, *signals = split_path(request.path.removeprefix(PATH).removesuffix(b"/"))
        try:
            self._check_allowed(service_id or "", request)
            await self._push(service_id or "", signals, request)
        except _RefusedError as exc:
            self._refused[exc.cause] += 1
            name, fields = excerpt(service_id or ""), {"cause": exc.cause, "http_status": exc.response.code}
            log.warning("push to %s refused: %s", name, exc, extra={"event": "push_refused", "service": name, **fields})
            return exc.response
        return ACCEPTED

    async def _push(self, service_id: str, signals: list[str | None], request: Request) -> None:
        signal, exit_status = _signal(signals)
        try:
            report = read_push(request.query, request.body, signal)
        except ValueError as exc:
            response = error_response(400, f"Nothing is recorded, because this push is not clear: {exc}")
            raise _RefusedError(response, "content", str(exc)) from exc
        if signal == "log":
            log.info("push to %s: %s", service_id, report.reason, extra={"event": "push_log", "service": service_id})
            return
        change = _change(service_id, report, exit_status, _run_id(request))
        if not self._limit_of(service_id).take(self._node.now_s()):
            if report.status != "down":
                raise _RefusedError(TOO_MANY, "rate", f"there are more than {RATE_PER_S:g} per second")
            # A failure passes the limit if it is news. So those that pass are at most as many as the successes.
            change = change._replace(unless_down=True)
        try:
            await self._change(change)
        except ControlError as exc:
            if exc.status == TOO_MANY.code:
                raise _RefusedError(TOO_MANY, "rate", str(exc)) from exc
            if exc.status >= 500:
                raise _RefusedError(NOT_STORED, "store", str(exc)) from exc
            raise _RefusedError(NOT_FOUND, "service", str(exc)) from exc  # a reload has just changed it

    def _check_allowed(self, service_id: str, request: Request) -> None:
        """Compares the token in the same steps for every request, whether the service exists or not."""
        access = self._access_of(service_id) or self._no_access
        if not hmac.compare_digest(_digest(_token(request)), _digest(access.token.encode())):
            raise _RefusedError(NOT_FOUND, "token", "there is no service with this id and token")
        if request.method != "POST" and not access.by_get:
            raise _RefusedError(NOT_FOUND, "method", f"{request.method} needs push_get = true")

    def _limit_of(self, service_id: str) -> RateLimit:
        now_s = self._node.now_s()
        if service_id not in self._limits:
            if len(self._limits) >= MAX_LIMITS:
                self._limits = {key: limit for key, limit in self._limits.items() if not limit.is_at_rest(now_s)}
            self._limits[service_id] = RateLimit(now_s)
        return self._limits[service_id]


class RateLimit:
    def __init__(self, now_s: float) -> None:
        self._allowed, self._at_s = BURST, now_s

    def is_at_rest(self, now_s: float) -> bool:
        """As good as a new one."""
        return self._allowed_at(now_s) == BURST

    def _allowed_at(self, now_s: float) -> float:
        return min(BURST, self._allowed + (now_s - self._at_s) * RATE_PER_S)

    def take(self, now_s: float) -> bool:
        self._allowed, self._at_s = self._allowed_at(now_s), now_s
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True


def _signal(signals: list[str | None]) -> tuple[str, str]:
    """What the path says, as `read_push` takes it, and the exit status of a job that has failed."""
    match [signal and signal.lower() for signal in signals]:
        case []:
            return "", ""
        case ["0"]:
            return "up", ""
        case ["fail"]:
            return "down", ""
        case [("start" | "log") as signal]:
            return signal, ""
        case [str(status)] if _EXIT_STATUS.fullmatch(status):
            return "down", status
        case _:
            raise _RefusedError(NOT_FOUND, "path", "there is no such path")


def _change(service_id: str, report: Report, exit_status: str, run_id: dict[str, str]) -> ChangeRequest:
    if report.status == "start":
        return ChangeRequest(run_path(service_id), {**run_id})
    reason, code = report.reason, report.code or str(ReasonCode.REPORTED)
    if exit_status:
        reason = f"exit status {exit_status}: {reason}" if reason else f"exit status {exit_status}"
        code = report.code or str(ReasonCode.EXIT_STATUS)
    elif report.status == "down":
        reason = reason or "the job has failed"
    return ChangeRequest(status_path(service_id), {"status": report.status, "reason": reason, "code": code, **run_id})


def _digest(token: bytes) -> bytes:
    return sha256(token).digest()


def _token(request: Request) -> bytes:
    """Of `?token=`, where a plus sign is not a space, or of the header `Authorization`: also the password of a URL."""
    return _parameter(request, b"token") or authorization_token(request.headers.get(b"authorization", b""))


def _run_id(request: Request) -> dict[str, str]:
    """A malformed one is ignored: the report counts without it."""
    rid = _parameter(request, b"rid").replace(b"-", b"").lower()
    return {"rid": rid.decode()} if _UUID_DIGITS.fullmatch(rid) else {}


def _parameter(request: Request, name: bytes) -> bytes:
    for parameter in request.query.split(b"&"):
        key, _, value = parameter.partition(b"=")
        if key == name:
            return unquote_to_bytes(value)
    return b""
