"""A fault of this machine is unknown for every kind, never a fault of the service; a missing host is failed."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode as Code
from svcnode.core.model import Outcome, Verdict
from svcnode.probes import make_probe
from svcnode.probes.run import run_check
from tests.contract.checks import judge
from tests.contract.kinds import ALLOWED, LOCAL_SCHEMES, PLAIN_KINDS, ROWS, Kind
from tests.support.backends import closed_port
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.probe_assertions import CHECK_TIMEOUT_S, no_free_descriptors
from tests.support.verdicts import CONNECTION_REFUSED, NO_DESCRIPTORS, failed, unknown

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.check_runner import CheckRunner, FakeResolver

every_plain_kind = pytest.mark.parametrize("kind", PLAIN_KINDS, ids=str)
every_local_kind = pytest.mark.parametrize("scheme", LOCAL_SCHEMES)
RESOLVER_FAILED = unknown(Code.RESOLVER_FAILED)


@every_plain_kind
def test_a_check_without_free_descriptors_is_unknown(check: CheckRunner, kind: Kind) -> None:
    async def main(port: int) -> list[Verdict]:
        probe = make_probe(kind.config(f"127.0.0.1:{port}"))
        before, _ = await run_check(probe, WAIT_TIMEOUT_S)  # imports all that it needs
        with no_free_descriptors():
            without, _ = await run_check(probe, WAIT_TIMEOUT_S)
        after, _ = await run_check(probe, WAIT_TIMEOUT_S)
        return [before, without, after]

    with closed_port() as port:
        assert check.run(main(port)) == [CONNECTION_REFUSED, NO_DESCRIPTORS, CONNECTION_REFUSED]


@every_plain_kind
def test_a_resolver_that_fails_is_unknown(check: CheckRunner, kind: Kind, resolver: FakeResolver) -> None:
    for number in (socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM):
        resolver.error = socket.gaierror(number, "")
        assert judge(check, kind.config("db.example:80"), 80) == RESOLVER_FAILED


@every_plain_kind
def test_a_resolver_that_hangs_is_unknown(check: CheckRunner, kind: Kind, resolver: FakeResolver) -> None:
    probe = make_probe(kind.config("slow.example:80"))
    verdict, error = check.run(run_check(probe, CHECK_TIMEOUT_S))
    assert (verdict, error) == (RESOLVER_FAILED, None)
    assert resolver.queries == ["slow.example"]


@every_plain_kind
@pytest.mark.usefixtures("resolver")
def test_an_unknown_host_is_failed(check: CheckRunner, kind: Kind) -> None:
    assert judge(check, kind.config("nothing.invalid:80"), 80) == failed(Code.HOST_NOT_FOUND)


@every_plain_kind
def test_a_name_with_several_addresses_is_resolved_once(check: CheckRunner, kind: Kind, resolver: FakeResolver) -> None:
    resolver.addresses["db.example"] = ["127.0.0.2", "127.0.0.1"]
    with closed_port() as port:
        assert judge(check, kind.config(f"db.example:{port}"), port) == CONNECTION_REFUSED
    assert resolver.queries == ["db.example"]


@every_plain_kind
def test_a_lookup_without_a_thread_is_unknown(check: CheckRunner, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    config = kind.config("db.example:80")
    monkeypatch.setattr(threading.Thread, "start", fail_to_start)
    assert judge(check, config, 80) == NO_DESCRIPTORS


def fail_to_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


# ---- kinds without a connection


@every_local_kind
def test_a_local_check_without_free_descriptors_or_threads_is_not_failed(
    check: CheckRunner, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = ROWS[scheme].local
    assert target is not None
    probe = make_probe(target(tmp_path), allowed=ALLOWED)

    async def main() -> list[Verdict]:
        verdicts = [(await run_check(probe, WAIT_TIMEOUT_S))[0]]
        with no_free_descriptors():
            verdicts.append((await run_check(probe, WAIT_TIMEOUT_S))[0])
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail_to_start)
            verdicts.append((await run_check(probe, WAIT_TIMEOUT_S))[0])
        await asyncio.sleep(0)
        return [*verdicts, (await run_check(probe, WAIT_TIMEOUT_S))[0]]

    normal, without_descriptors, without_threads, again = check.run(main())
    assert normal.outcome is again.outcome
    assert normal.outcome in ROWS[scheme].outcomes
    for verdict in (without_descriptors, without_threads):
        assert verdict == normal or verdict.outcome is Outcome.UNKNOWN
