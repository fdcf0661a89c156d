"""`ipfs+http://…`, `ipfs+https://…`: an IPFS daemon, checked over its RPC API.

ready      `/api/v0/id` returns the id of the daemon, and it has at least `min_peers` peers
not ready  it has fewer peers; the certificate expires within `min_cert_days`
failed     any other response; connection refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver or the proxy does not answer
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from svcnode.core.codes import ReasonCode, code_for_http_status
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
            # The RPC API accepts only POST.
            object.__setattr__(self, name, self.build_request(target, method="POST", needs="body", keep_alive=True))

    async def check(self) -> Verdict:
        try:
            with self.session() as session:
                response = await session.send(self._id)
                match _document(response):
                    case {"ID": str()}:
                        pass
                    case _:
                        return self._unexpected("/api/v0/id returned no id", response)
                if self.min_peers and (verdict := self._peers_verdict(await session.send(self._peers))) is not None:
                    return verdict
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))
        return response.certificate_verdict or READY

    def _peers_verdict(self, response: HttpResponse) -> Verdict | None:
        """None if there are enough peers."""
        match _document(response):
            case {"Peers": list(peers)}:
                count = len(peers)
            case {"Peers": None}:
                count = 0
            case _:
                return self._unexpected("/api/v0/swarm/peers returned no list of peers", response)
        if count < self.min_peers:
            return Verdict.not_ready(
                f"{count} peers; min_peers is {self.min_peers}: {self.url}", code=ReasonCode.TOO_FEW_PEERS
            )
        return None

    def _unexpected(self, problem: str, response: HttpResponse) -> Verdict:
        return Verdict.failed(
            f"{problem} (HTTP status {response.status}): {self.url}", code=code_for_http_status(response.status)
        )


def _document(response: HttpResponse) -> Any:  # noqa: ANN401  any JSON value
    return response.document() if response.status == 200 else INVALID_JSON
