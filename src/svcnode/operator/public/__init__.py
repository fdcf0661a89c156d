"""The public view: what a node publishes to everyone, without a token; `[public]` says what and where.

view.py        what is public, read from the node; everything else is made from it alone
outages.py     from the transitions of the history to outages
page.py        the HTML page, which has no scripts, and the badges
statuspage.py  JSON, in the shape of the API of Statuspage
feed.py        the Atom feed

An answer is made once per change and shared by all readers, in a thread, and at most once a second: neither readers
nor changes of services that are not published can take much of the node's time.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from svcnode.api.spec import (
    METHOD_NOT_ALLOWED,
    METHODS,
    NOT_FOUND,
    Response,
    error_response,
    make_response,
    parse_known_query,
    split_path,
)
from svcnode.core.errors import InvalidValueError
from svcnode.history.records import DAYS
from svcnode.net.os_errors import ThreadStartError
from svcnode.net.threads import call_in_pool
from svcnode.operator import NO_THREAD, OVERLOADED
from svcnode.operator.compression import accepts_gzip
from svcnode.operator.public import feed, page, statuspage
from svcnode.operator.public.outages import Past, past_of
from svcnode.operator.public.view import (
    NO_DAYS,
    Publication,
    PublicView,
    all_outages,
    all_windows,
    current_maintenance,
    days_of,
    planned_maintenance,
    published_services,
)
from svcnode.operator.single_flight import OverloadedError, SingleFlight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from svcnode.api.spec import Headers, Request
    from svcnode.operator.context import OperatorContext
    from svcnode.operator.public.view import Days, PublicService, Window

__all__ = ["PublicApp", "Publication"]

LOOK_INTERVAL_S = 1.0  # between two looks at what has changed
HISTORY_TIMEOUT_S = 2.0  # then the answer has what was last read of the history; statuses are always those of now
MAX_TRANSITIONS = 5000
MAX_AGE_S = 10  # for which caches may keep an answer
MIN_GZIP_BYTES = 1024
MINUTE_S = 60

_JSON, _SVG = "application/json", "image/svg+xml"
_POLICY = "default-src 'none'; frame-ancestors 'none'"
_PAGE_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


class Document(NamedTuple):
    content_type: str
    render: Callable[[PublicView], bytes]
    is_page: bool = False


class Answer(NamedTuple):
    """A response, plain and compressed, each with its headers."""

    plain: Response
    zipped: Response

    def to(self, request: Request) -> Response:
        response = self.zipped if accepts_gzip(request.headers.get(b"accept-encoding", b"")) else self.plain
        etag = dict(response.headers)["ETag"]
        if not is_known(etag, request.headers.get(b"if-none-match", b"")):
            return response
        kept = tuple(header for header in response.headers if not header[0].startswith("Content-"))
        return Response(304, b"", kept)


DOCUMENTS: dict[str, Document] = {
    "": Document("text/html; charset=utf-8", page.render, is_page=True),
    page.STYLE: Document("text/css; charset=utf-8", lambda _: page.read_file(page.STYLE)),
    page.ICON: Document(_SVG, page.render_icon),
    page.BADGE: Document(_SVG, page.render_badge),
    feed.FEED: Document("application/atom+xml; charset=utf-8", feed.render),
    "robots.txt": Document("text/plain; charset=utf-8", lambda _: b"User-agent: *\nDisallow:\n"),
    **{
        f"api/v2/{path}": Document(_JSON, partial(statuspage.render, document))
        for path, document in statuspage.DOCUMENTS.items()
    },
}


class PublicApp:
    """Serves the public view below a path of some listeners. If the path is "", nothing else is served there."""

    def __init__(self, context: OperatorContext, publication: Publication, path: str = "") -> None:
        self.publication = publication
        self.path = path
        self._context = context
        self._root = split_path(path)
        self._answers = SingleFlight(lasts=True)
        self._past = Past()  # as it was last read
        self._days: Mapping[str, Days] = {}
        self._days_read_for: object = None  # the services and the minute
        self._version: object = None
        self._next_look_s = 0.0

    def matches(self, path: bytes) -> bool:
        return split_path(path)[: len(self._root)] == self._root or not self.path

    def rejection(self, request: Request) -> Response | None:
        return None if request.method in METHODS else METHOD_NOT_ALLOWED

    async def handle(self, request: Request) -> Response:
        segments = split_path(request.path)[len(self._root) :]
        if None in segments:  # not UTF-8
            return NOT_FOUND
        try:
            parse_known_query(request.query, ())
        except InvalidValueError as exc:
            return error_response(400, str(exc))
        if not segments:  # relative links of the page begin at the folder
            return make_response(308, b"", ("Location", f"{self.path.rpartition('/')[2]}/"))
        try:
            answer = await self._answer([segment for segment in segments if segment is not None])
        except OverloadedError:
            return OVERLOADED
        except ThreadStartError:
            return NO_THREAD
        return NOT_FOUND if answer is None else answer.to(request)

    async def _answer(self, segments: list[str]) -> Answer | None:
        version = self._current_version()
        name = "/".join(segments)
        if name in DOCUMENTS:
            return await self._answers.get_async(name, lambda: self._make(DOCUMENTS[name], version), version=version)
        match segments:
            case [page.BADGES, file] if file.endswith(page.BADGE_SUFFIX):
                service = (await self._view(version)).find(file.removesuffix(page.BADGE_SUFFIX))
                return None if service is None else make_answer(page.service_badge(service), _SVG)
        return None

    def _current_version(self) -> object:
        """It changes at most once a second, and at least once a minute, since durations grow."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + LOOK_INTERVAL_S
            node = self._context.node
            node.expire_stale()
            self._version = node.revision, self._context.history.last_id, self._minute_s()
        return self._version

    def _now_s(self) -> float:
        node = self._context.node
        return node.wall_time_s(node.now_s())

    def _minute_s(self) -> int:
        return int(self._now_s()) // MINUTE_S * MINUTE_S

    async def _make(self, document: Document, version: object) -> Answer:
        view = await self._view(version)
        return await call_in_pool(
            lambda: make_answer(document.render(view), document.content_type, is_page=document.is_page)
        )

    async def _view(self, version: object) -> PublicView:
        return await self._answers.get_async(None, self._read, version=version)

    async def _read(self) -> PublicView:
        as_of_s, node = self._minute_s(), self._context.node
        services = await call_in_pool(lambda: published_services(node, self.publication))
        await self._read_history([service.id for service in services], as_of_s)
        current = current_maintenance(node)
        planned = list(planned_maintenance(node, self.publication, self._now_s()))
        return await call_in_pool(lambda: self._put_together(services, current, planned, as_of_s))

    async def _read_history(self, service_ids: list[str], as_of_s: float) -> None:
        # Without a version: a disk that hangs has one computation waiting for it.
        flight = self._context.history_single_flight.get_async(self, lambda: self._read_past(service_ids, as_of_s))
        with suppress(TimeoutError):
            await asyncio.wait_for(flight, HISTORY_TIMEOUT_S)

    async def _read_past(self, service_ids: list[str], as_of_s: float) -> None:
        """The outages, and once a minute the days, which take most of the time."""
        history, wanted = self._context.history, (as_of_s, tuple(service_ids))
        from_s = as_of_s - DAYS.length_s * DAYS.bucket_count
        transitions = await history.of_services(service_ids, from_s, MAX_TRANSITIONS)
        if len(transitions) == MAX_TRANSITIONS:  # there may be more before
            from_s = min(one.at_s for one in transitions)
        runs, now_s = await history.runs(from_s), self._now_s()
        self._past = await call_in_pool(lambda: past_of(transitions, runs, service_ids, from_s, now_s))
        if self._days_read_for != wanted:
            buckets = await history.buckets(service_ids, DAYS)
            self._days = await call_in_pool(lambda: {one: days_of(found) for one, found in buckets.items()})
            self._days_read_for = wanted

    def _put_together(
        self,
        services: Sequence[PublicService],
        current: list[tuple[str | None, float]],
        planned: list[Window],
        as_of_s: float,
    ) -> PublicView:
        service_ids = [service.id for service in services]
        past = self._past
        view = PublicView(
            title=self.publication.title,
            url=self.publication.url,
            as_of_s=as_of_s,
            services=tuple(service._replace(days=self._days.get(service.id, NO_DAYS)) for service in services),
            outages=all_outages(services, past),
            maintenance=all_windows(service_ids, current, planned, past.maintenance_since_s, as_of_s),
        )
        return view._replace(as_of_s=max(as_of_s, min(view.updated_s, self._now_s())))


# ---- answers; pure


def make_answer(body: bytes, content_type: str, *, is_page: bool = False) -> Answer:
    digest = hashlib.sha256(body).hexdigest()[:20]
    plain = _response(body, content_type, f'"{digest}"', is_page=is_page)
    if len(body) < MIN_GZIP_BYTES:
        return Answer(plain, plain)
    zipped = gzip.compress(body, mtime=0)
    coding = ("Content-Encoding", "gzip")
    return Answer(plain, _response(zipped, content_type, f'"{digest}-gzip"', coding, is_page=is_page))


def _response(body: bytes, content_type: str, etag: str, *more: tuple[str, str], is_page: bool) -> Response:
    headers: Headers = (
        ("Content-Type", content_type),
        *more,
        ("Content-Length", str(len(body))),
        ("ETag", etag),
        ("Cache-Control", f"public, max-age={MAX_AGE_S}"),
        ("Vary", "Accept-Encoding"),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Security-Policy", _PAGE_POLICY if is_page else _POLICY),
        ("Referrer-Policy", "no-referrer"),
        # It is for everyone: pages of any site may show the badges and read the JSON.
        ("Cross-Origin-Resource-Policy", "cross-origin"),
        ("Access-Control-Allow-Origin", "*"),
        ("X-Robots-Tag", "all" if is_page else "noindex"),
    )
    return Response(200, body, headers)


def is_known(etag: str, if_none_match: bytes) -> bool:
    known = (item.strip().removeprefix("W/") for item in if_none_match.decode("latin-1").split(","))
    return any(item in (etag, "*") for item in known)
