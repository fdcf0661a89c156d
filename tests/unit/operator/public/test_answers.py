"""The public application: its paths, codings and caching, and when an answer is made again."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.api.spec import Request, Response
from svcnode.core.model import Verdict
from svcnode.history.records import Stretch, Transition
from svcnode.operator import public
from svcnode.operator.public import DOCUMENTS, LOOK_INTERVAL_S, PublicApp, Publication
from svcnode.operator.single_flight import MAX_IN_FLIGHT
from tests.support.operator_context import STARTED_AT_S, OperatorHarness
from tests.support.real_time import in_real_time

if TYPE_CHECKING:
    from collections.abc import Callable

SUMMARY = "/api/v2/summary.json"


class PublicHarness(OperatorHarness):
    def __init__(self) -> None:
        super().__init__()
        self.transitions: list[Transition] = []
        self.reads = 0
        self.history.of_services, self.history.runs = self._of_services, self._runs
        self.node.register("db", name="Ledger", description="")
        self.node.register("secret", name="Hidden", description="")
        self.record("db", Verdict.ready())
        self.use("")

    def use(self, path: str) -> None:
        self.app = PublicApp(self.context, Publication(title="Status", services=("db",)), path)

    async def _of_services(self, service_ids: Any, from_s: float, limit: int) -> list[Transition]:
        self.reads += 1
        return self.transitions

    async def _runs(self, from_s: float) -> list[Stretch]:
        return [Stretch(STARTED_AT_S - 100, STARTED_AT_S + 100)]

    async def get(self, path: str = "/", **headers: str) -> Response:
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        request = Request("GET", path.encode(), headers=named)
        assert self.app.matches(request.path)
        return self.app.rejection(request) or await self.app.handle(request)

    async def indicator(self) -> str:
        body: dict[str, Any] = json.loads((await self.get(SUMMARY)).body)
        return str(body["status"]["indicator"])

    def look_again(self) -> None:
        """As after LOOK_INTERVAL_S."""
        self.app._next_look_s = 0.0


@pytest.fixture
def harness() -> PublicHarness:
    return PublicHarness()


# ---- paths


@pytest.mark.parametrize("path", ["", "/public", "/a/b"])
@in_real_time
async def test_every_document_is_served_below_the_path(harness: PublicHarness, path: str) -> None:
    harness.use(path)
    for name, document in DOCUMENTS.items():
        response = await harness.get(f"{path}/{name}")
        assert (response.code, dict(response.headers)["Content-Type"]) == (200, document.content_type), name
        assert dict(response.headers)["Content-Length"] == str(len(response.body))


@pytest.mark.parametrize(
    "path",
    [
        "/svc/node",
        "/details",
        "/metrics",
        "/livez",
        "/badge/secret.svg",
        "/badge/none.svg",
        "/badge/db",
        "/x",
        "//",
        "/%ff",
    ],
)
@in_real_time
async def test_nothing_else_is_and_a_hidden_service_is_as_one_that_does_not_exist(
    harness: PublicHarness, path: str
) -> None:
    assert (await harness.get(path)) == (await harness.get("/badge/other.svg"))
    assert (await harness.get(path)).code == 404


@in_real_time
async def test_a_parameter_that_does_not_exist_is_refused(harness: PublicHarness) -> None:
    assert (await harness.app.handle(Request("GET", b"/", b"x=1"))).code == 400


@in_real_time
async def test_a_published_service_has_a_badge(harness: PublicHarness) -> None:
    harness.node.register("a/b c", name="Slashed", description="")
    harness.app = PublicApp(harness.context, Publication(title="Status", services=("db", "a/b c")))
    assert b"Ledger" in (await harness.get("/badge/db.svg")).body
    assert b"Slashed" in (await harness.get("/badge/a%2Fb%20c.svg")).body


@in_real_time
async def test_without_a_slash_at_its_end_the_path_is_redirected(harness: PublicHarness) -> None:
    harness.use("/a/public")
    response = await harness.get("/a/public")
    assert (response.code, dict(response.headers)["Location"]) == (308, "public/")


def test_only_get_and_head_are_allowed(harness: PublicHarness) -> None:
    for method, code in (("GET", None), ("HEAD", None), ("POST", 405), ("OPTIONS", 405)):
        rejection = harness.app.rejection(Request(method, b"/"))
        assert (rejection and rejection.code) == code


# ---- codings and caching


@in_real_time
async def test_long_answers_are_compressed_for_those_who_accept_it(harness: PublicHarness) -> None:
    plain, zipped = await harness.get(), await harness.get(accept_encoding="br, gzip")
    assert gzip.decompress(zipped.body) == plain.body
    assert dict(zipped.headers)["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in dict(plain.headers)
    assert {dict(one.headers)["Vary"] for one in (plain, zipped)} == {"Accept-Encoding"}
    assert "Content-Encoding" not in dict((await harness.get("/badge.svg", accept_encoding="gzip")).headers)


@pytest.mark.parametrize("coding", ["", "gzip"])
@in_real_time
async def test_a_reader_who_has_the_answer_gets_none(harness: PublicHarness, coding: str) -> None:
    first = await harness.get(accept_encoding=coding)
    etag = dict(first.headers)["ETag"]
    for known in (etag, f'"x", W/{etag}', "*"):
        again = await harness.get(accept_encoding=coding, if_none_match=known)
        assert (again.code, again.body, dict(again.headers)["ETag"]) == (304, b"", etag)
    assert (await harness.get(accept_encoding=coding, if_none_match='"x"')).code == 200


@in_real_time
async def test_answers_may_be_kept_for_a_short_time_and_shown_anywhere(harness: PublicHarness) -> None:
    for name in DOCUMENTS:
        headers = dict((await harness.get(f"/{name}")).headers)
        assert headers["Cache-Control"] == "public, max-age=10"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert headers["Access-Control-Allow-Origin"] == "*"
        assert headers["X-Robots-Tag"] == ("noindex" if name else "all")


# ---- when an answer is made


@in_real_time
async def test_an_answer_is_made_once_and_shared_until_something_changes(harness: PublicHarness) -> None:
    first = await asyncio.gather(*(harness.get() for _ in range(5)))
    harness.look_again()
    later = await harness.get()
    assert all(one.body is later.body for one in first)
    assert harness.reads == 1


@in_real_time
async def test_a_change_is_shown_at_the_next_look(harness: PublicHarness) -> None:
    assert await harness.indicator() == "none"
    harness.record("db", Verdict.failed("why"))
    assert await harness.indicator() == "none", f"within {LOOK_INTERVAL_S} s"
    harness.look_again()
    assert await harness.indicator() == "critical"


@in_real_time
async def test_stale_evidence_is_not_shown_as_working(harness: PublicHarness) -> None:
    harness.node.register("p", name="P", description="", ttl="5s")
    harness.record("p", Verdict.ready())
    harness.app = PublicApp(harness.context, Publication(title="Status", services=("p",)))
    assert await harness.indicator() == "none"
    harness.clock.advance(6)
    harness.look_again()
    assert await harness.indicator() == "critical"


def change_hidden(harness: PublicHarness) -> None:
    harness.record("secret", Verdict.failed("why"))
    harness.history.last_id += 1


def wait_a_moment(harness: PublicHarness) -> None:
    harness.clock.advance(20)


@pytest.mark.parametrize("happen", [change_hidden, wait_a_moment])
@in_real_time
async def test_nothing_shows_that_a_hidden_service_has_changed(
    harness: PublicHarness, happen: Callable[[PublicHarness], None]
) -> None:
    before = {name: await harness.get(f"/{name}") for name in DOCUMENTS}
    happen(harness)
    harness.look_again()
    assert {name: await harness.get(f"/{name}") for name in DOCUMENTS} == before


@in_real_time
async def test_the_page_says_how_old_it_is_at_least_every_minute(harness: PublicHarness) -> None:
    before = await harness.get()
    harness.clock.advance(60)
    harness.look_again()
    assert (await harness.get()).headers != before.headers


@in_real_time
async def test_outages_come_from_the_history(harness: PublicHarness) -> None:
    times = ((STARTED_AT_S - 90, "Down"), (STARTED_AT_S - 60, "Up"))
    harness.transitions = [
        Transition(1, at_s, "status", "db", None, after, "why", "x", 200, 200) for at_s, after in times
    ]
    incidents = json.loads((await harness.get("/api/v2/incidents.json")).body)["incidents"]
    assert [one["status"] for one in incidents] == ["resolved"]


@in_real_time
async def test_while_the_disk_hangs_statuses_are_those_of_now(
    harness: PublicHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public, "HISTORY_TIMEOUT_S", 0.01)
    never = asyncio.Event()

    async def hang(*_: object) -> Any:
        harness.reads += 1
        await never.wait()

    harness.history.of_services = hang
    assert await harness.indicator() == "none"
    harness.record("db", Verdict.failed("why"))
    harness.look_again()
    assert await harness.indicator() == "critical"
    assert harness.reads == 1, "the next answers wait for the same reading"
    never.set()


@in_real_time
async def test_too_many_requests_in_progress_are_answered_with_503(harness: PublicHarness) -> None:
    waiting = [asyncio.create_task(harness.app._answers.get_async(n, never_ends)) for n in range(MAX_IN_FLIGHT)]
    await asyncio.sleep(0)
    response = await harness.get()
    assert (response.code, dict(response.headers)["Retry-After"]) == (503, "10")
    for task in (*waiting, *harness.app._answers._in_flight):
        task.cancel()


async def never_ends() -> None:
    await asyncio.Event().wait()


@in_real_time
async def test_the_page_is_never_older_than_the_outage_that_it_shows(harness: PublicHarness) -> None:
    """Otherwise it is as of a whole minute, so that a change of something else does not show."""

    async def shown_at() -> tuple[str, str]:
        harness.look_again()
        body = json.loads((await harness.get(SUMMARY)).body)
        page = (await harness.get()).body.decode()
        as_of = re.search(r'As of <time datetime="([^"]+)"', page)
        assert as_of is not None
        return as_of[1], max(component["updated_at"] for component in body["components"])

    before, _ = await shown_at()
    harness.clock.advance(30)
    for _ in range(3):
        harness.record("secret", Verdict.failed("refused"))
    assert (await shown_at())[0] == before
    for _ in range(3):
        harness.record("db", Verdict.failed("refused"))
    as_of, changed = await shown_at()
    assert as_of >= changed > before
