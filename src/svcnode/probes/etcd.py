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
from svcnode.probes.tools.exchange import HttpOptions
from svcnode.probes.tools.faults import verdict_on
from svcnode.probes.tools.session import login_from, told

if TYPE_CHECKING:
    from svcnode.probes.tools.exchange import Conversation
    from svcnode.probes.tools.http_answer import HttpAnswer

READY = Verdict.ready()


class RefusedError(Exception):
    """What it answered instead, in words."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EtcdProbe(HttpOptions):
    tls: bool = False
    username: str = ""
    password: str = ""

    default_ports: ClassVar = {"http": 2379, "https": 2379}
    tls_set_by: ClassVar = "tls = true"

    def __post_init__(self) -> None:
        self.url.refuse_path()
        username, password = login_from(self.url, self.username, self.password)
        if password and not username:
            raise OptionError("username", "is missing, and the password belongs to it")
        if self.bearer:
            raise OptionError("bearer", "has no meaning for etcd, which takes a username and a password")
        self.request("/health")  # refuses at once what no look could use

    @property
    def web_scheme(self) -> str:
        return "https" if self.tls else "http"

    def authorization(self) -> list[tuple[str, str]]:
        return []  # it wants a token, which a user name and a password are exchanged for

    async def look(self) -> Verdict:
        try:
            with self.conversation() as conversation:
                return await self._judged(conversation)
        except RefusedError as exc:
            return Verdict.failed(f"{exc}: {self.url}")
        except OSError as exc:
            return verdict_on(exc, str(self.url))

    async def _judged(self, conversation: Conversation) -> Verdict:
        status = await self._posted(conversation, "/v3/maintenance/status", {})
        if "header" not in status:  # of every answer; without it, no leader would be all that is missed in a web page
            raise RefusedError("/v3/maintenance/status answered 200 with what is no status of a member")
        if status.get("isLearner"):
            return Verdict.not_ready(f"a learner, which has no vote yet: {self.url}")
        if status.get("leader", "0") in ("0", 0):
            return Verdict.not_ready(f"it has no leader: {self.url}")
        health = await conversation.send(self.request("/health", needs="body", is_followed=True))
        about = _document(health)
        if health.status != 200 or about.get("health") != "true":
            errors = status.get("errors")
            alarms = ", ".join(filter(None, map(_message, errors))) if isinstance(errors, list) else ""
            why = _message(about.get("reason")) or alarms
            raise RefusedError(f"it says that it is not healthy{_shown(why)}")
        await self._log_in(conversation)  # last: without a leader it would wait for one
        return health.expiring or READY

    async def _log_in(self, conversation: Conversation) -> None:
        name, password = login_from(self.url, self.username, self.password)
        if name:
            await self._posted(conversation, "/v3/auth/authenticate", {"name": name, "password": password})

    async def _posted(self, conversation: Conversation, target: str, body: dict[str, str]) -> dict[str, Any]:
        request = self.request(
            target,
            method="POST",
            body=json.dumps(body).encode(),
            content_type="application/json",
            needs="body",
            is_followed=True,
        )
        answer = await conversation.send(request)
        document = _document(answer)
        if answer.status != 200:
            why = _message(document.get("error")) or _message(document)
            raise RefusedError(f"{target} answered {answer.status}{_shown(why)}")
        return document


def _document(answer: HttpAnswer) -> dict[str, Any]:
    document = answer.document()
    return document if isinstance(document, dict) else {}


def _message(said: object) -> str:
    """What it says of an error, in words: some of its gateways have them as they are, some in an object."""
    match said:
        case str(text) | {"message": str(text)}:
            return text
        case _:
            return ""


def _shown(words: str) -> str:
    return f", {told(Exception(words))}" if words else ""
