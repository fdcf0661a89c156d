"""`ipfs+http://…`, `ipfs+https://…`: an IPFS daemon, checked over its RPC API.

ready      `/api/v0/id` returns the id of the daemon, and it has at least `min_peers` peers
not ready  it has fewer peers; the certificate expires within `min_cert_days`
failed     any other response; connection refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver or the proxy does not answer
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from svcnode.core.codes import ReasonCode, code_for_http_status
from svcnode.core.url import UrlForm
from svcnode.net.http1 import PreparedRequest
from svcnode.net.http_response import INVALID_JSON
from svcnode.probes.base import CheckError
from svcnode.probes.http_client import HttpSessionProbe
from svcnode.probes.options import Count

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from svcnode.net.http1 import HttpSession
    from svcnode.net.http_response import HttpResponse


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IpfsProbe(HttpSessionProbe):
    min_peers: Count = 0
    _id: PreparedRequest = field(init=False, compare=False)
    _peers: PreparedRequest = field(init=False, compare=False)
    url_form: ClassVar = UrlForm(query="")

    def __post_init__(self) -> None:
        self.url.reject_parts(self.url_form)
        for name, path in (("_id", "id"), ("_peers", "swarm/peers")):
            target = f"{self.url.path.rstrip('/')}/api/v0/{path}"
            # The RPC API accepts only POST.
            object.__setattr__(self, name, self.build_request(target, method="POST", needs="body", keep_alive=True))

    async def check_session(self, session: HttpSession) -> Verdict | None:
        response = await session.send(self._id)
        match _document(response):
            case {"ID": str()}:
                pass
            case _:
                raise _unexpected("/api/v0/id returned no id", response)
        if self.min_peers and (peers := _peer_count(await session.send(self._peers))) < self.min_peers:
            return self.not_ready(f"{peers} peers, but min_peers is {self.min_peers}", ReasonCode.TOO_FEW_PEERS)
        return response.certificate_verdict


def _peer_count(response: HttpResponse) -> int:
    match _document(response):
        case {"Peers": list(peers)}:
            return len(peers)
        case {"Peers": None}:
            return 0
        case _:
            raise _unexpected("/api/v0/swarm/peers returned no list of peers", response)


def _document(response: HttpResponse) -> Any:  # noqa: ANN401  any JSON value
    return response.document() if response.status == 200 else INVALID_JSON


def _unexpected(problem: str, response: HttpResponse) -> CheckError:
    return CheckError(f"{problem} (HTTP status {response.status})", code_for_http_status(response.status))
