"""`etcd://host:port`: a member of an etcd cluster, checked over its JSON gateway.

ready      the member is healthy, has a leader and is not a learner; the credentials are valid, if there are any; with
           `write`, the cluster commits a transaction
not ready  the member has no leader or is a learner; it reports that its space is used up, so it accepts only reads; the
           certificate expires within `min_cert_days`
failed     the member reports damaged data or that it is not healthy for another reason; wrong credentials; the write
           does not end in time or is refused for another reason; any other response; connection refused, host
           unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver or the proxy does not answer

The write is a transaction that puts a key if it does not exist. Only the first one adds a revision to the database; the
others change nothing. They need the same permission, space and quorum as a put: the cluster evaluates the condition
after it has committed the transaction to its log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from svcnode.core.codes import ReasonCode, code_for_grpc_status, code_for_http_status
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome
from svcnode.core.option_types import PublicText
from svcnode.core.redaction import RotatingSecret
from svcnode.core.url import NO_PATH, UrlForm
from svcnode.net.etcd_json import (
    LOGIN_PATH,
    STATUS_PATH,
    TXN_PATH,
    GatewayError,
    MemberStatus,
    Put,
    encode_key,
    error_message,
    parse_gateway_error,
    parse_header,
    parse_status,
    parse_token,
)
from svcnode.probes.base import CheckError
from svcnode.probes.http_client import HttpSessionProbe
from svcnode.probes.options import WriteTarget
from svcnode.probes.session import driver_error_text, resolve_credentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.core.model import Verdict
    from svcnode.net.http1 import HttpSession
    from svcnode.net.http_response import HttpResponse

T = TypeVar("T")

_INVALID_ARGUMENT, _PERMISSION_DENIED, _RESOURCE_EXHAUSTED = 3, 7, 8  # gRPC statuses
_FAILED_PRECONDITION, _DATA_LOSS, _UNAUTHENTICATED = 9, 15, 16
# By the name of an alarm. With NOSPACE, the data is right and reads are served; with CORRUPT, the data may be wrong.
_ALARMS = {
    "CORRUPT": (ReasonCode.CORRUPT, Outcome.FAILED),
    "NOSPACE": (ReasonCode.STORAGE_FULL, Outcome.NOT_READY),
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EtcdProbe(HttpSessionProbe):
    tls: bool = False
    username: PublicText = ""
    password: str = ""
    write: WriteTarget = ""  # a key
    _token: RotatingSecret = field(init=False, compare=False, default_factory=RotatingSecret)

    default_ports: ClassVar = {"http": 2379, "https": 2379}
    tls_enabled_by: ClassVar = "tls = true"
    url_form: ClassVar = UrlForm(path=NO_PATH, query="")

    def __post_init__(self) -> None:
        self.url.reject_parts(self.url_form)
        username, password = resolve_credentials(self.url, self.username, self.password)
        if password and not username:
            raise OptionError("username", "is missing; the password needs it")
        if self.bearer:
            raise OptionError("bearer", "is not supported by etcd; set username and password")
        self.build_request("/health")  # reject invalid options when the probe is made

    @property
    def http_scheme(self) -> str:
        return "https" if self.tls else "http"

    def authorization(self) -> list[tuple[str, str]]:
        return []  # etcd expects a token, not the user name and password of the URL

    async def check_session(self, session: HttpSession) -> Verdict | None:
        status, token = await self._status(session)
        if status.is_learner:
            return self.not_ready("the member is a learner and does not vote yet", ReasonCode.SYNCING)
        if not status.leader_id:
            return self.not_ready("the member has no leader", ReasonCode.NO_LEADER)
        response = await session.send(self.build_request("/health", needs="body", keep_alive=True))
        health = _document(response)
        if response.status != 200 or health.get("health") != "true":
            raise _unhealthy_error(health, status)
        token = token or await self._log_in(session)  # without a leader the login waits for one
        if self.write:
            await self._write(session, token)
        return response.certificate_verdict

    async def _status(self, session: HttpSession) -> tuple[MemberStatus, str]:
        """And the token, if a login was needed: older versions tell their status to anyone."""
        try:
            return await self._call(session, _STATUS, {}), ""
        except CheckError as exc:
            if exc.code is not ReasonCode.AUTH_REQUIRED or not (token := await self._log_in(session)):
                raise
        return await self._call(session, _STATUS, {}, token=token), token

    async def _log_in(self, session: HttpSession) -> str:
        """The token of the session; "" without a user."""
        name, password = resolve_credentials(self.url, self.username, self.password)
        if not name:
            return ""
        token = await self._call(session, _LOGIN, {"name": name, "password": password})
        self._token.set(token)
        return token

    async def _write(self, session: HttpSession, token: str) -> None:
        exists = {"key": encode_key(self.write), "target": "VERSION", "result": "GREATER", "version": "0"}
        body = {"compare": [exists], "failure": [{"requestPut": Put(self.write, b"svcnode").encode()}]}
        try:
            await self._call(session, _WRITE, body, token=token)
        except CheckError as exc:
            if exc.code is not ReasonCode.PERMISSION_DENIED:
                raise
            raise CheckError(f"{exc}; {self._missing_permission()}", exc.code) from None

    def _missing_permission(self) -> str:
        import shlex  # only for this text

        grant = shlex.join(["etcdctl", "role", "grant-permission", "ROLE", "readwrite", self.write])
        return f'the user needs a role with readwrite for the key "{self.write}": {grant}'

    async def _call(self, session: HttpSession, call: _Call[T], body: dict[str, Any], *, token: str = "") -> T:
        request = self.build_request(
            call.path,
            method="POST",
            body=json.dumps(body).encode(),
            content_type="application/json",
            needs="body",
            keep_alive=True,
            default_headers=[("Authorization", token)] if token else (),
        )
        response = await session.send(replace(request, step_name=call.step_name))
        document = _document(response)
        if response.status != 200:
            raise _call_error(call.path, response.status, document)
        try:
            return call.parse(document)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):  # JSON of another server
            text = f"{call.path} did not return {call.result}"
            raise CheckError(text, ReasonCode.UNEXPECTED_RESPONSE) from None


class _Call(NamedTuple, Generic[T]):
    path: str
    parse: Callable[[dict[str, Any]], T]
    result: str
    step_name: str = "exchange"


_STATUS = _Call(STATUS_PATH, parse_status, "the status of a member")
_LOGIN = _Call(LOGIN_PATH, parse_token, "a token")
_WRITE = _Call(TXN_PATH, parse_header, "a result", "write")


def _unhealthy_error(health: dict[str, Any], status: MemberStatus) -> CheckError:
    alarms = ", ".join(status.errors)
    reason = error_message(health.get("reason"))
    found = next((name for name in _ALARMS if name in f"{reason} {alarms}"), "")
    code, outcome = _ALARMS.get(found, (ReasonCode.UNHEALTHY, Outcome.FAILED))
    return CheckError(f"the member reports that it is not healthy{_suffix(reason or alarms)}", code, outcome)


def _call_error(path: str, http_status: int, document: dict[str, Any]) -> CheckError:
    """By the gRPC status that the gateway adds; etcd reports a wrong password as INVALID_ARGUMENT."""
    detail, grpc_status = parse_gateway_error(document) or GatewayError("", None)
    text = f"{path}: HTTP status {http_status}{_suffix(detail)}"
    if path == STATUS_PATH and _is_login_required(detail, grpc_status):
        return CheckError(text, ReasonCode.AUTH_REQUIRED)
    if path == TXN_PATH:
        return _write_error(text, grpc_status)
    if path == LOGIN_PATH and grpc_status in (_INVALID_ARGUMENT, _FAILED_PRECONDITION, _UNAUTHENTICATED):
        return CheckError(text, ReasonCode.AUTH_FAILED)
    if grpc_status is not None:
        return CheckError(text, code_for_grpc_status(grpc_status))
    return CheckError(text, code_for_http_status(http_status))


def _write_error(text: str, grpc_status: int | None) -> CheckError:
    if grpc_status == _RESOURCE_EXHAUSTED and "space exceeded" in text:  # the other one is too many requests
        return CheckError(text, *_ALARMS["NOSPACE"])
    if grpc_status == _DATA_LOSS:
        return CheckError(text, *_ALARMS["CORRUPT"])
    if grpc_status == _PERMISSION_DENIED:
        return CheckError(text, ReasonCode.PERMISSION_DENIED)
    if _is_login_required(text, grpc_status):
        return CheckError(text, ReasonCode.AUTH_REQUIRED)
    return CheckError(text, ReasonCode.WRITE_FAILED)


def _is_login_required(text: str, grpc_status: int | None) -> bool:
    return grpc_status == _UNAUTHENTICATED or "user name is empty" in text


def _document(response: HttpResponse) -> dict[str, Any]:
    document = response.document()
    return document if isinstance(document, dict) else {}


def _suffix(detail: str) -> str:
    return f", {driver_error_text(detail)}" if detail else ""
