"""`http://…`, `https://…`: an endpoint that answers as it should.

ready      the status is in `status`, and the body is as asked
not ready  the status is in `starting_status`, or all of `starting_json` stands in the body; the certificate ends within
           `min_cert_days`
failed     any other answer; refused, unreachable, not trusted, not HTTP, too large
unknown    no file descriptors or ports left here; the resolver or the proxy does not work
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urljoin

from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.core.redaction import redacted
from svcnode.net.http1 import DEFAULT_PORTS, PreparedRequest
from svcnode.net.http_response import HttpResponse, InvalidJson
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.url import Url
from svcnode.probes.http_client import HttpClientProbe
from svcnode.probes.json_pointer import Expectations, find_mismatch
from svcnode.probes.options import Count, RawBytes
from svcnode.probes.regex import MATCH_TIMEOUT_S, Pattern, pattern_matches

READY = Verdict.ready()
REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_MAX_SHOWN_CHARS = 200


def statuses(value: object) -> frozenset[int]:
    """From 200, "2xx", "200-204", or a list of such."""
    if isinstance(value, list | tuple):
        return frozenset[int]().union(*map(statuses, value))
    if type(value) is int and 100 <= value <= 599:
        return frozenset({value})
    if isinstance(value, str):
        if re.fullmatch("[1-5]xx", value):
            first = int(value[0]) * 100
            return frozenset(range(first, first + 100))
        found = re.fullmatch("([1-5][0-9][0-9])(?:-([1-5][0-9][0-9]))?", value)
        if found and (span := range(int(found[1]), int(found[2] or found[1]) + 1)):
            return frozenset(span)
    raise InvalidValueError(f'is made of statuses such as 200, "2xx" and "200-204", not {value!r}')


Statuses = Annotated[frozenset[int], statuses]
SUCCESS = statuses("2xx")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HttpProbe(HttpClientProbe):
    method: str = "GET"
    body: RawBytes = b""
    status: Statuses = SUCCESS
    starting_status: Statuses = frozenset()
    contains: str = ""
    matches: Pattern = ""
    json: Expectations = field(default_factory=dict)
    starting_json: Expectations = field(default_factory=dict)
    redirects: Count = 0
    _request: PreparedRequest = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not re.fullmatch("[A-Z]+", self.method):
            raise OptionError("method", f'is a word in capitals such as "GET" or "HEAD", not "{self.method}"')
        if not self.status:
            raise OptionError("status", "names no status, so it could never be ready")
        if both := self.status & self.starting_status:
            raise OptionError("starting_status", f"holds {min(both)}, which status holds as well")
        if self.method == "HEAD" and self._needs_body:
            raise OptionError("method", "HEAD brings no body that could be judged; take GET")
        object.__setattr__(self, "_request", self._build_request_to(self.url, self.method, self.body))

    @property
    def _needs_body(self) -> bool:
        return bool(self.contains or self.matches or self.json or self.starting_json)

    def _build_request_to(self, url: Url, method: str, body: bytes) -> PreparedRequest:
        is_home = _origin(url) == _origin(self.url)
        return self.build_request(
            url.target,
            method=method,
            body=body if is_home else b"",
            needs="body" if self._needs_body else "head",  # which says where a redirect leads
            url=None if is_home else url,
        )

    async def check(self) -> Verdict:
        url, request = self.url, self._request
        method, body = self.method, self.body
        try:
            answer = await self.send(request)
            for _ in range(self.redirects):
                location = answer.headers.get("location")
                if answer.status not in REDIRECT_STATUSES or answer.status in self.status or location is None:
                    break
                url = _redirect_url(url, location)
                if answer.status == 303 or (answer.status in (301, 302) and method == "POST"):
                    method, body = "HEAD" if method == "HEAD" else "GET", b""  # as every client does
                answer = await self.send(self._build_request_to(url, method, body))
        except OSError as exc:
            return verdict_for_os_error(exc, str(url))
        return await self._verdict(answer, url)

    async def _verdict(self, answer: HttpResponse, url: Url) -> Verdict:
        if answer.status in self.starting_status:
            return Verdict.not_ready(f"answered {answer.status}, so it is starting: {url}")
        if answer.status not in self.status:
            hint = self._redirect_hint(answer, url) if answer.status in REDIRECT_STATUSES else ""
            return Verdict.failed(f"answered {answer.status}{hint}: {url}")
        document = answer.document() if self.json or self.starting_json else None
        if self.starting_json and find_mismatch(document, self.starting_json) is None:
            return Verdict.not_ready(f"answered {answer.status}, and says that it is starting: {url}")
        if self._needs_body and (fault := await self._find_problem(answer, document)):
            return Verdict.failed(f"answered {answer.status}, but {fault}: {url}")
        return answer.certificate_verdict or READY

    def _redirect_hint(self, answer: HttpResponse, url: Url) -> str:
        """Without a user, a password and a query, which may hold secrets that are not ours to know."""
        location = answer.headers.get("location")
        if not location:
            return ", a redirect that names no place"
        past = " past the limit," if self.redirects else ""
        try:
            new = _redirect_url(url, location)
        except ConnectionError:
            return f", a redirect{past.rstrip(',')}"
        return f", a redirect{past} to {redacted(f'{new.scheme}://{new.host_port}{new.path}')[:_MAX_SHOWN_CHARS]}"

    async def _find_problem(self, answer: HttpResponse, document: object) -> str | None:
        text = answer.body.decode("utf-8", "replace")
        if self.contains not in text:
            return f'its body does not hold "{self.contains}"'
        try:
            if self.matches and not await pattern_matches(self.matches, text):
                return f'its body does not match "{self.matches}"'
        except TimeoutError:
            return f'its body cannot be held against "{self.matches}" within {MATCH_TIMEOUT_S:g} s'
        # Where JSON was only to say that it is starting, a page may be ready, but nothing of which half says so.
        if isinstance(document, InvalidJson) and (self.json or document.reason):
            return f"its body is not JSON{document.suffix}"
        return find_mismatch(document, self.json)


def _origin(url: Url) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or DEFAULT_PORTS[url.scheme]


def _redirect_url(url: Url, location: str) -> Url:
    if not location:
        raise ConnectionError("it redirects to no place")
    with suppress(ProbeError, ValueError):
        new = Url.parse(urljoin(f"{url.scheme}://{url.host_port}{url.target}", location), register_secrets=False)
        if new.scheme in DEFAULT_PORTS and new.require_host():
            return new
    raise ConnectionError("it redirects to what is no http URL")
