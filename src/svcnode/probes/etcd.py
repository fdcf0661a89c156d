"""`etcd://host:port`: a member of an etcd cluster, spoken to over its JSON gateway.

ready      it has a leader, is no learner, and says that it is healthy; the credentials are right, where there are any
not ready  it has no leader, or is a learner; the certificate ends within `min_cert_days`
failed     it says that it is not healthy, as when its space is used up; wrong credentials; any other answer; refused,
           unreachable, not trusted
unknown    no file descriptors or ports left here; the resolver or the proxy does not work
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from svcnode.core.errors import OptionError
from svcnode.core.model import Verdict
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.probes.http_client import HttpClientProbe
from svcnode.probes.session import driver_error_text, resolve_credentials

if TYPE_CHECKING:
    from svcnode.net.http1 import HttpSession
    from svcnode.net.http_response import HttpResponse

READY = Verdict.ready()


class EtcdError(Exception):
    """What it answered instead, in words."""


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
            raise OptionError("username", "is missing, and the password belongs to it")
        if self.bearer:
            raise OptionError("bearer", "has no meaning for etcd, which takes a username and a password")
        self.build_request("/health")  # refuses at once what no look could use

    @property
    def http_scheme(self) -> str:
        return "https" if self.tls else "http"

    def authorization(self) -> list[tuple[str, str]]:
        return []  # it wants a token, which a user name and a password are exchanged for

    async def check(self) -> Verdict:
        try:
            with self.session() as conversation:
                return await self._check_member(conversation)
        except EtcdError as exc:
            return Verdict.failed(f"{exc}: {self.url}")
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))

    async def _check_member(self, conversation: HttpSession) -> Verdict:
        status = await self._post(conversation, "/v3/maintenance/status", {})
        if "header" not in status:  # of every answer; without it, no leader would be all that is missed in a web page
            raise EtcdError("/v3/maintenance/status answered 200 with what is no status of a member")
        if status.get("isLearner"):
            return Verdict.not_ready(f"a learner, which has no vote yet: {self.url}")
        if status.get("leader", "0") in ("0", 0):
            return Verdict.not_ready(f"it has no leader: {self.url}")
        health = await conversation.send(self.build_request("/health", needs="body", keep_alive=True))
        about = _document(health)
        if health.status != 200 or about.get("health") != "true":
            errors = status.get("errors")
            alarms = ", ".join(filter(None, map(_error_message, errors))) if isinstance(errors, list) else ""
            why = _error_message(about.get("reason")) or alarms
            raise EtcdError(f"it says that it is not healthy{_suffix(why)}")
        await self._log_in(conversation)  # last: without a leader it would wait for one
        return health.certificate_verdict or READY

    async def _log_in(self, conversation: HttpSession) -> None:
        name, password = resolve_credentials(self.url, self.username, self.password)
        if name:
            await self._post(conversation, "/v3/auth/authenticate", {"name": name, "password": password})

    async def _post(self, conversation: HttpSession, target: str, body: dict[str, str]) -> dict[str, Any]:
        request = self.build_request(
            target,
            method="POST",
            body=json.dumps(body).encode(),
            content_type="application/json",
            needs="body",
            keep_alive=True,
        )
        answer = await conversation.send(request)
        document = _document(answer)
        if answer.status != 200:
            why = _error_message(document.get("error")) or _error_message(document)
            raise EtcdError(f"{target} answered {answer.status}{_suffix(why)}")
        return document


def _document(answer: HttpResponse) -> dict[str, Any]:
    document = answer.document()
    return document if isinstance(document, dict) else {}


def _error_message(said: object) -> str:
    """What it says of an error, in words: some of its gateways have them as they are, some in an object."""
    match said:
        case str(text) | {"message": str(text)}:
            return text
        case _:
            return ""


def _suffix(words: str) -> str:
    return f", {driver_error_text(Exception(words))}" if words else ""
