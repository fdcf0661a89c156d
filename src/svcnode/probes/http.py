"""`http://…`, `https://…`, `http+unix:///socket:/path`: an endpoint responds with the expected status and body.

ready      the status is in `status`, the body is as expected, and all conditions of `require` hold
not ready  the status is in `starting_status`, the body matches `starting_json`, or a condition of `starting` holds; a
           value that must advance has not yet; the certificate expires within
           `min_cert_days`
failed     any other response; with `fresh`, a response from a cache; connection refused, host unreachable, certificate
           not valid, not HTTP, too large
unknown    no file descriptors or ports left on this machine, no route from it, or the resolver or the proxy failed
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import urljoin

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.option_types import PublicText, option_type
from svcnode.core.redaction import redacted
from svcnode.core.text import truncate
from svcnode.core.url import HTTP_SOCKET_FORM, Url
from svcnode.net.batch import BatchCheck
from svcnode.net.connect import TcpEndpoint
from svcnode.net.http1 import DEFAULT_PORTS, PreparedRequest
from svcnode.net.http_response import EndProtocol, Http2ResponseError, HttpResponse, InvalidJson, StatusProtocol
from svcnode.net.os_errors import CodedOSError, verdict_for_os_error
from svcnode.probes.conditions import (
    Condition,
    ConditionalProbe,
    Conditions,
    Matches,
    Problem,
    equalities,
    find_problem,
    find_starting,
)
from svcnode.probes.http_client import HttpClientProbe
from svcnode.probes.json_pointer import Expectations
from svcnode.probes.options import Count, RawBytes
from svcnode.probes.regex import Pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

READY = Verdict.ready()
REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_MAX_SHOWN_CHARS = 200
_MAX_AGE_DIGITS = 12
_NO_CACHE = (("Cache-Control", "no-cache, no-store"), ("Pragma", "no-cache"))
# A whole word, such as HIT or TCP_HIT, but not in the name of a cache, which follows "from".
_FROM_CACHE = re.compile(
    r"(?<![a-z0-9.-])(?:[a-z]+[_-])*(?:hit|stale|updating)(?:_[a-z]+)*(?![a-z0-9.-])", re.IGNORECASE
)
_CACHE_NAME = re.compile(r"\bfrom\s[^,]*", re.IGNORECASE)
_CACHE_HEADERS = {
    "cache-status": re.compile(r";\s*hit(?=\s*[;,]|\s*$)", re.IGNORECASE),  # RFC 9211
    "warning": re.compile(r"(?:^|,)\s*11[01](?= )"),  # stale, revalidation failed
    "x-cache": _FROM_CACHE,
    "x-cache-status": _FROM_CACHE,
    "x-proxy-cache": _FROM_CACHE,
    "cf-cache-status": _FROM_CACHE,
}


_STATUS = {
    "anyOf": [
        {"type": "integer", "minimum": 100, "maximum": 599},
        {"type": "string", "pattern": "^[1-5](xx|[0-9][0-9](-[1-5][0-9][0-9])?)$"},
    ]
}


def _show_statuses(numbers: frozenset[int]) -> list[int | str]:
    """Numbers that follow each other as a range: [200, "300-399"]."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


@option_type({"anyOf": [_STATUS, {"type": "array", "items": _STATUS}]}, show=_show_statuses)
def statuses(value: object) -> frozenset[int]:
    """200, "2xx", "200-204", or a list of these."""
    if isinstance(value, list | tuple):
        return frozenset[int]().union(*map(statuses, value))
    if type(value) is int and 100 <= value <= 599:
        return frozenset({value})
    if isinstance(value, str):
        if re.fullmatch("[1-5]xx", value):
            first = int(value[0]) * 100
            return frozenset(range(first, first + 100))
        found = re.fullmatch("([1-5][0-9][0-9])(?:-([1-5][0-9][0-9]))?", value)
        if found and (numbers := range(int(found[1]), int(found[2] or found[1]) + 1)):
            return frozenset(numbers)
    raise InvalidValueError(f'must be a status such as 200, "2xx" or "200-204", or a list of these, not {value!r}')


Statuses = Annotated[frozenset[int], statuses]
SUCCESS = statuses("2xx")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HttpProbe(ConditionalProbe, HttpClientProbe):
    method: PublicText = "GET"
    body: RawBytes = b""
    status: Statuses = SUCCESS
    starting_status: Statuses = frozenset()
    contains: PublicText = ""
    matches: Pattern = ""
    json: Expectations = field(default_factory=dict)
    starting_json: Expectations = field(default_factory=dict)
    require: Conditions = ()  # on the JSON of the body
    starting: Conditions = ()  # one of them holds: not ready
    redirects: Count = 0
    fresh: bool = False  # ask past caches, and reject their responses
    http2: bool = False  # with prior knowledge for http, in the TLS handshake for https
    _required: tuple[Condition, ...] = field(init=False, compare=False)
    _request: PreparedRequest = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not re.fullmatch("[A-Z]+", self.method):
            raise OptionError("method", f'must be in capital letters, such as "GET" or "HEAD", not "{self.method}"')
        if not self.status:
            raise OptionError("status", "must contain at least one status")
        if both := self.status & self.starting_status:
            raise OptionError(
                "starting_status", f"has {min(both)}, which is also in status; remove it from one of them"
            )
        if self.method == "HEAD" and self._needs_body:
            raise OptionError("method", "responses to HEAD have no body to check; use GET")
        object.__setattr__(self, "_required", (*equalities(self.json), *self.require))
        object.__setattr__(self, "_request", self._build_request_to(self.url, self.method, self.body))

    @property
    def _needs_body(self) -> bool:
        return bool(self.contains or self.matches or self._reads_json)

    @property
    def _reads_json(self) -> bool:
        return bool(self.json or self.starting_json or self.require or self.starting)

    def _build_request_to(self, url: Url, method: str, body: bytes) -> PreparedRequest:
        is_same_origin = url is self.url or _origin(url) == _origin(self.url)
        return self.build_request(
            _unique_target(url) if self.fresh else url.target,
            method=method,
            body=body if is_same_origin else b"",
            needs="body" if self._needs_body else "head" if method == "HEAD" else "end",
            url=None if is_same_origin else url,
            http2=self.http2,
            default_headers=_NO_CACHE if self.fresh else (),
        )

    def batch_check(self) -> BatchCheck | None:
        # A class that derives from this one may have a `check` of its own.
        is_plain = type(self) is HttpProbe and not (
            self._request.uses_tls
            or self._request.proxy
            or self._needs_body
            or self.redirects
            or self.fresh
            or self.http2
            or self.reuse
        )
        endpoint = self._request.endpoint
        if is_plain and isinstance(endpoint, TcpEndpoint) and endpoint.is_ip_address:
            return _ExchangeCheck(self, endpoint)
        return None

    async def check(self) -> Verdict:
        began_s = time.monotonic()
        url, method, body = self.url, self.method, self.body
        request = self._build_request_to(url, method, body) if self.fresh else self._request
        try:
            response = await self.send(request)
            for _ in range(self.redirects):
                location = response.headers.get("location")
                if response.status not in REDIRECT_STATUSES or response.status in self.status or location is None:
                    break
                url = _redirect_url(url, location)
                if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                    method, body = "HEAD" if method == "HEAD" else "GET", b""  # as browsers do
                response = await self.send(self._build_request_to(url, method, body))
        except OSError as exc:
            return self.error_verdict(exc, url)
        if self.fresh and response.status in self.status:
            source = cache_source(response.headers, time.monotonic() - began_s)
            if source:
                return Verdict.failed(
                    f"the response is from a cache, not from the server ({source}): {self._shown(url)}",
                    code=ReasonCode.OUTDATED_RESPONSE,
                )
        return self.status_verdict(response, url) or await self._body_verdict(response, url)

    def error_verdict(self, exc: OSError, url: Url) -> Verdict:
        if isinstance(exc, Http2ResponseError):
            exc = CodedOSError(f"{exc}; set http2 = true", exc.code)
        return verdict_for_os_error(exc, self._shown(url))

    def status_verdict(self, response: HttpResponse, url: Url) -> Verdict | None:
        """None if the status is the expected one."""
        status = response.status
        if status in self.starting_status:
            return Verdict.not_ready(f"HTTP status {status}, starting: {self._shown(url)}", code=ReasonCode.STARTING)
        if status not in self.status:
            hint = self._redirect_hint(response, url) if status in REDIRECT_STATUSES else ""
            return Verdict.failed(f"HTTP status {status}{hint}: {self._shown(url)}", code=self.code_for_status(status))
        return None

    async def _body_verdict(self, response: HttpResponse, url: Url) -> Verdict:
        problem = await self._find_problem(response) if self._needs_body else None
        if problem is not None:
            but = "" if problem.code == ReasonCode.STARTING else " but"
            text = f"HTTP status {response.status},{but} {problem.text}: {self._shown(url)}"
            return Verdict(problem.outcome, text, problem.code)
        return response.certificate_verdict or READY

    def _shown(self, url: Url) -> str:
        """The URL that was asked last. A server chooses the URL of a redirect, at any length."""
        text = str(url)
        return text if url is self.url else truncate(text, _MAX_SHOWN_CHARS)

    def _redirect_hint(self, response: HttpResponse, url: Url) -> str:
        """The new location without user, password and query, which may contain secrets of the server."""
        location = response.headers.get("location")
        if not location:
            return ", redirect without a location"
        limit = f", after {self.redirects} redirects" if self.redirects else ""
        try:
            new = _redirect_url(url, location)
        except CodedOSError:
            return f", redirect to an invalid URL{limit}"
        return (
            f", redirect to {truncate(redacted(f'{new.scheme}://{new.host_port}{new.path}'), _MAX_SHOWN_CHARS)}{limit}"
        )

    async def _find_problem(self, response: HttpResponse) -> Problem | None:
        document = response.document() if self._reads_json else None
        starting, problem = await self._find_starting(document), await find_problem(self._required, document)
        if starting is not None:
            return starting
        text = response.body.decode("utf-8", "replace")
        if self.contains not in text:
            return Problem(f'the body does not contain "{self.contains}"')
        matches = Matches(self.matches, shows_value=False)
        if self.matches and (mismatch := await matches.find_problem("the body", text)):
            return mismatch
        # If only `starting` and `starting_json` are set, a body that is not JSON is fine, unless it is broken JSON.
        if isinstance(document, InvalidJson) and (self._required or document.reason):
            return Problem(f"the body is not JSON{document.suffix}")
        return problem

    async def _find_starting(self, document: object) -> Problem | None:
        if self.starting_json and await find_problem(equalities(self.starting_json), document) is None:
            return Problem("starting", ReasonCode.STARTING, Outcome.NOT_READY)
        return await find_starting(self.starting, document)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UnixHttpProbe(HttpProbe):
    """The same through a Unix socket, as of Docker. The path of the request follows the socket, after a colon."""

    url_form: ClassVar = HTTP_SOCKET_FORM

    def __post_init__(self) -> None:
        if self.redirects:
            raise OptionError("redirects", "cannot be used with a Unix socket")
        HttpProbe.__post_init__(self)


class _ExchangeCheck(BatchCheck):
    """As `HttpProbe.check` if it needs only the status of one response."""

    __slots__ = ("_probe", "_protocol")

    def __init__(self, probe: HttpProbe, endpoint: TcpEndpoint) -> None:
        super().__init__(endpoint)
        self._probe = probe

    def on_connected(self) -> None:
        self._protocol = StatusProtocol() if self._probe.method == "HEAD" else EndProtocol()
        self.send(self._probe._request.payload)

    def on_data(self, data: bytes) -> Verdict | None:
        self._protocol.data_received(data)
        return self._verdict() if self._protocol.response.done() else None

    def on_closed(self) -> Verdict:
        self._protocol.connection_lost(None)
        return self._verdict()

    def on_error(self, exc: OSError) -> Verdict:
        return self._probe.error_verdict(exc, self._probe.url)

    def _verdict(self) -> Verdict:
        probe, protocol = self._probe, self._protocol
        protocol.close()
        del self._protocol  # until the next check
        if (error := protocol.response.exception()) is not None:
            assert isinstance(error, OSError)
            return self.on_error(error)
        response = protocol.response.result()
        if response.status in REDIRECT_STATUSES:  # the location is in the reason
            response = protocol.with_headers()
        return probe.status_verdict(response, probe.url) or READY


def _unique_target(url: Url) -> str:
    """The target with a parameter that no request had before, so that no cache has its response."""
    query = "&".join(filter(None, [url.query, f"_svcnode={os.urandom(8).hex()}"]))
    return f"{url.path or '/'}?{query}"


def cache_source(headers: Mapping[str, str], duration_s: float) -> str:
    """The header that shows that a cache sent the response without asking the server; "" if none does.

    `Age` is in whole seconds, and may have grown while the check was running.
    """
    age = headers.get("age", "").partition(",")[0].strip()
    if age.isascii() and age.isdecimal() and int(age[:_MAX_AGE_DIGITS]) > duration_s + 1:
        return f"Age: {age[:_MAX_AGE_DIGITS]}"
    for name, pattern in _CACHE_HEADERS.items():
        value = headers.get(name, "")
        if found := pattern.search(_CACHE_NAME.sub("", value) if pattern is _FROM_CACHE else value):
            return f"{name}: {found[0].strip(' ;,')}"
    return ""


def _origin(url: Url) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or DEFAULT_PORTS[url.scheme]


def _redirect_url(url: Url, location: str) -> Url:
    if not location:
        raise CodedOSError("redirect without a location", ReasonCode.REDIRECTED)
    with suppress(ProbeError, ValueError):
        base = f"http://localhost{url.target}" if url.socket else f"{url.scheme}://{url.host_port}{url.target}"
        new = Url.parse(urljoin(base, location), register_secrets=False)
        if new.scheme in DEFAULT_PORTS and new.require_host():
            return new
    raise CodedOSError("redirect to an invalid URL", ReasonCode.REDIRECTED)
