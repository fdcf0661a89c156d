"""`ipfs+http://…`, `ipfs+https://…`: an IPFS daemon, spoken to over its RPC interface.

ready      its id is answered, and it has `min_peers` peers
not ready  fewer peers; the certificate ends within `min_cert_days`
failed     any other answer; refused, unreachable, not trusted
unknown    no file descriptors or ports left here; the resolver or the proxy does not work
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from svcnode.core.model import Verdict
from svcnode.net.http1 import PreparedRequest
from svcnode.net.http_response import INVALID_JSON, HttpResponse
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.probes.http_client import HttpClientProbe
from svcnode.probes.options import Count

READY = Verdict.ready()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IpfsProbe(HttpClientProbe):
    min_peers: Count = 0
    _id: PreparedRequest = field(init=False, compare=False)
    _peers: PreparedRequest = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.url.reject_query()
        for name, path in (("_id", "id"), ("_peers", "swarm/peers")):
            target = f"{self.url.path.rstrip('/')}/api/v0/{path}"
            # The interface takes nothing but POST.
            object.__setattr__(self, name, self.build_request(target, method="POST", needs="body", keep_alive=True))

    async def check(self) -> Verdict:
        try:
            with self.session() as conversation:
                about = await conversation.send(self._id)
                match _document(about):
                    case {"ID": str()}:
                        pass
                    case _:
                        return Verdict.failed(f"answered {about.status} and did not tell its id: {self.url}")
                if self.min_peers:
                    peers = _document(await conversation.send(self._peers))
                    if (verdict := self._peers_verdict(peers)) is not None:
                        return verdict
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))
        return about.certificate_verdict or READY

    def _peers_verdict(self, peers: object) -> Verdict | None:
        match peers:
            case {"Peers": list(found)}:
                count = len(found)
            case {"Peers": None}:
                count = 0
            case _:
                return Verdict.failed(f"it did not tell its peers: {self.url}")
        if count < self.min_peers:
            return Verdict.not_ready(f"{count} peers, min_peers is {self.min_peers}: {self.url}")
        return None


def _document(answer: HttpResponse) -> Any:  # noqa: ANN401  whatever JSON can hold
    return answer.document() if answer.status == 200 else INVALID_JSON
