"""`web3signer+http://…`, `web3signer+https://…`: a Web3Signer that can sign.

ready      it is up, all of its health checks are UP, and it has loaded at least one key, and all of `keys`
not ready  it has no key; the certificate expires within `min_cert_days`
failed     a health check is DOWN, such as that of the slashing protection; one of `keys` is not loaded; any other
           response; connection refused, host unreachable, certificate not trusted
unknown    the server does not have a path that the check needs; no file descriptors or ports left on this machine; the
           resolver or the proxy does not answer
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome
from svcnode.core.option_types import option_type
from svcnode.core.url import UrlForm
from svcnode.net.http_response import MAX_BODY_BYTES
from svcnode.probes.base import CheckError
from svcnode.probes.chain import LARGE_BODY_BYTES
from svcnode.probes.http_client import HttpSessionProbe
from svcnode.probes.json_pointer import json_excerpt
from svcnode.probes.options import strings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.core.model import Verdict
    from svcnode.net.http1 import HttpSession
    from svcnode.net.http_response import HttpResponse

UP = "UP"
NETWORKS = ("eth2", "eth1")  # a server signs for one of them
_KEY = "0x[0-9a-fA-F]+"
_SHOWN_CHECKS, _SHOWN_KEYS, _SHOWN_CHARS = 10, 3, 14


def _is_key(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(_KEY, value) is not None


@option_type({"type": "array", "items": {"type": "string", "pattern": f"^{_KEY}$"}}, show=list)
def public_keys(value: object) -> tuple[str, ...]:
    keys = strings(value)
    for key in keys:
        if not _is_key(key):
            raise InvalidValueError(f'must be a list of public keys such as "0x93247f22…", not "{key[:20]}"')
    return tuple(map(str.lower, keys))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Web3SignerProbe(HttpSessionProbe):
    keys: Annotated[tuple[str, ...], public_keys] = ()

    url_form: ClassVar = UrlForm(query="")

    def __post_init__(self) -> None:
        self.url.reject_parts(self.url_form)
        self.build_request("/upcheck")  # reject invalid options when the probe is made

    async def check_session(self, session: HttpSession) -> Verdict | None:
        up = await self._get(session, "upcheck")
        if up.status != 200:  # another server
            raise CheckError(f"/upcheck has HTTP status {up.status}", self.code_for_status(up.status))
        return await self._health_verdict(session) or await self._keys_verdict(session) or up.certificate_verdict

    async def _health_verdict(self, session: HttpSession) -> Verdict | None:
        response = await self._get(session, "healthcheck")
        document = response.document()
        if not isinstance(document, dict):
            raise self._unexpected("/healthcheck", response)
        claims = [document[name] for name in ("status", "outcome") if name in document]  # older signers have the second
        down = [*islice(_down(document.get("checks", [])), _SHOWN_CHECKS)]
        if "DOWN" in claims or down:
            text = f"these checks of the signer are DOWN: {', '.join(down) or 'not named'}"
            return self.failed(text, ReasonCode.UNHEALTHY)
        if response.status == 200 and claims and all(claim == UP for claim in claims):
            return None
        raise self._unexpected("/healthcheck", response)

    async def _keys_verdict(self, session: HttpSession) -> Verdict | None:
        keys = await self._read_keys(session)
        if missing := [key for key in self.keys if key not in keys]:
            shown = ", ".join(f"{key[:_SHOWN_CHARS]}…" for key in missing[:_SHOWN_KEYS])
            text = f"{len(missing)} of {len(self.keys)} keys are not loaded: {shown}"
            return self.failed(text, ReasonCode.NOT_FOUND)
        return None if keys else self.not_ready("the signer has no keys", ReasonCode.NOT_FOUND)

    async def _read_keys(self, session: HttpSession) -> set[str]:
        for network in NETWORKS:
            response = await self._get(session, f"api/v1/{network}/publicKeys")
            match response.document():
                case list(keys) if response.status == 200 and all(map(_is_key, keys)):
                    return set(map(str.lower, keys))
                case _ if response.status != 404:
                    break
        raise self._unexpected(f"/api/v1/{network}/publicKeys", response)

    async def _get(self, session: HttpSession, path: str) -> HttpResponse:
        target = f"{self.url.path.rstrip('/')}/{path}"
        limit = LARGE_BODY_BYTES if path.endswith("publicKeys") else MAX_BODY_BYTES
        return await session.send(self.build_request(target, needs="body", keep_alive=True, max_body_bytes=limit))

    def _unexpected(self, path: str, response: HttpResponse) -> CheckError:
        outcome, code = Outcome.FAILED, self.code_for_status(response.status)
        if response.status == 404:
            outcome, code = Outcome.UNKNOWN, ReasonCode.NOT_SUPPORTED
        return CheckError(
            f"the response of {path} is not that of a Web3Signer (HTTP status {response.status})", code, outcome
        )


def _down(checks: object) -> Iterator[str]:
    """The names of the checks that are not UP. Those that hold others may leave it to them, as deeply as JSON."""
    waiting = [checks]
    while waiting:
        found = waiting.pop()
        if not isinstance(found, list):
            yield f"{json_excerpt(found)} is not a list of checks"
            continue
        for check in found:
            if not isinstance(check, dict):
                yield json_excerpt(check)
                continue
            if check.get("status", UP if "checks" in check else None) != UP:
                name = check.get("id")
                yield name[:60] if isinstance(name, str) else "not named"
            waiting.append(check.get("checks", []))
