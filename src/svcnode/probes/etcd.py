"""`etcd://host:port`: a member of an etcd cluster, checked over its JSON gateway.

ready      the member is healthy, has a leader and is not a learner; the credentials are valid, if there are any
not ready  the member has no leader or is a learner; the certificate expires within `min_cert_days`
failed     the member reports that it is not healthy, for example because its space is used up; wrong credentials; any
           other response; connection refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver or the proxy does not answer
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from svcnode.core.codes import ReasonCode, code_for_grpc_status, code_for_http_status
from svcnode.core.errors import OptionError
from svcnode.core.model import Verdict
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.probes.base import CheckError
from svcnode.probes.http_client import HttpClientProbe
from svcnode.probes.session import driver_error_text, resolve_credentials

if TYPE_CHECKING:
    from svcnode.net.http1 import HttpSession
    from svcnode.net.http_response import HttpResponse

READY = Verdict.ready()
_STATUS_PATH, _LOGIN_PATH = "/v3/maintenance/status", "/v3/auth/authenticate"
_INVALID_ARGUMENT, _FAILED_PRECONDITION, _UNAUTHENTICATED = 3, 9, 16  # gRPC statuses


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EtcdProbe(HttpClientProbe):
    tls: bool = False
    username: str = ""
    password: str = ""

    default_ports: ClassVar = {"http": 2379, "https": 2379}
    tls_enabled_by: ClassVar = "tls = true"

    def __post_init__(self) -> None:
        self.url.reject_path()
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

    async def check(self) -> Verdict:
        try:
            with self.session() as session:
                return await self._check_member(session)
        except CheckError as exc:
            return exc.verdict(self.url)
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))

    async def _check_member(self, session: HttpSession) -> Verdict:
        status = await self._post(session, _STATUS_PATH, {})
        if "header" not in status:  # every status has it; JSON of another server would read as "no leader"
            raise CheckError(f"{_STATUS_PATH} did not return the status of a member", ReasonCode.UNEXPECTED_RESPONSE)
        if status.get("isLearner"):
            return Verdict.not_ready(
                f"the member is a learner and does not vote yet: {self.url}", code=ReasonCode.SYNCING
            )
        if status.get("leader", "0") in ("0", 0):
            return Verdict.not_ready(f"the member has no leader: {self.url}", code=ReasonCode.NO_LEADER)
        response = await session.send(self.build_request("/health", needs="body", keep_alive=True))
        health = _document(response)
        if response.status != 200 or health.get("health") != "true":
            errors = status.get("errors")
            alarms = ", ".join(filter(None, map(_error_message, errors))) if isinstance(errors, list) else ""
            detail = _error_message(health.get("reason")) or alarms
            raise CheckError(f"the member reports that it is not healthy{_suffix(detail)}", ReasonCode.UNHEALTHY)
        await self._log_in(session)  # last: without a leader the login waits for one
        return response.certificate_verdict or READY

    async def _log_in(self, session: HttpSession) -> None:
        name, password = resolve_credentials(self.url, self.username, self.password)
        if name:
            await self._post(session, _LOGIN_PATH, {"name": name, "password": password})

    async def _post(self, session: HttpSession, path: str, body: dict[str, str]) -> dict[str, Any]:
        request = self.build_request(
            path,
            method="POST",
            body=json.dumps(body).encode(),
            content_type="application/json",
            needs="body",
            keep_alive=True,
        )
        response = await session.send(request)
        document = _document(response)
        if response.status != 200:
            detail = _error_message(document.get("error")) or _error_message(document)
            raise CheckError(
                f"{path}: HTTP status {response.status}{_suffix(detail)}", _reason_code(path, response.status, document)
            )
        return document


def _reason_code(path: str, http_status: int, document: dict[str, Any]) -> ReasonCode:
    """By the gRPC status that the gateway adds; etcd reports a wrong password as INVALID_ARGUMENT."""
    grpc_status = document.get("code")
    if path == _LOGIN_PATH and grpc_status in (_INVALID_ARGUMENT, _FAILED_PRECONDITION, _UNAUTHENTICATED):
        return ReasonCode.AUTH_FAILED
    return code_for_grpc_status(grpc_status) if isinstance(grpc_status, int) else code_for_http_status(http_status)


def _document(response: HttpResponse) -> dict[str, Any]:
    document = response.document()
    return document if isinstance(document, dict) else {}


def _error_message(error: object) -> str:
    """The text of an error: some versions of the gateway send it as a string, others in an object."""
    match error:
        case str(text) | {"message": str(text)}:
            return text
        case _:
            return ""


def _suffix(detail: str) -> str:
    return f", {driver_error_text(Exception(detail))}" if detail else ""
