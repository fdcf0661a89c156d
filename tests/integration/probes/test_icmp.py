"""icmp: in a network namespace in which the kernel allows ping sockets, and where it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import ProbeError
from svcnode.net.datagram import InvalidAnswerError
from svcnode.probes import make_probe
from svcnode.probes.icmp import SYSCTL, EchoQuestion
from svcnode.probes.run import run_check
from tests.support.http_server import LOOPS
from tests.support.network_namespace import (
    BLACK_HOLE_IPV4,
    OWN_IPV4,
    OWN_IPV6,
    SILENT_IPV4,
    UNROUTED_IPV4,
    NetworkNamespace,
    run_in_namespace,
)
from tests.support.verdicts import READY, failed, unknown

if TYPE_CHECKING:
    from svcnode.core.model import Verdict

PING_GROUPS = Path("/proc/sys") / SYSCTL.replace(".", "/")
TIMEOUT_S = 0.5
ARP_TIMEOUT_S = 20.0  # the kernel asks three times, in 3 s


def verdicts_in_namespace(
    tmp_path: Path, loop_name: str, *targets: tuple[str, float], groups: str = "0 2147483647"
) -> list[Verdict]:
    """Of these hosts, each with a timeout, if the kernel allows these groups to ping."""

    async def main() -> list[Verdict]:
        return [(await run_check(make_probe(f"icmp:{host}"), timeout_s))[0] for host, timeout_s in targets]

    def run(namespace: NetworkNamespace) -> list[Verdict]:
        namespace.set_hosts(here_example=OWN_IPV4, both_example=f"{OWN_IPV6} {OWN_IPV4}")
        PING_GROUPS.write_text(groups)  # of the namespace only
        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            return runner.run(main())

    return run_in_namespace(tmp_path / "hosts", run)


def test_hosts_that_answer_are_ready_and_others_are_failed(tmp_path: Path, loop_name: str) -> None:
    here, ipv6, name, both, silent, unrouted, hole = verdicts_in_namespace(
        tmp_path,
        loop_name,
        (OWN_IPV4, 5),
        (OWN_IPV6, 5),
        ("here.example", 5),
        ("both.example", 5),
        (SILENT_IPV4, ARP_TIMEOUT_S),
        (UNROUTED_IPV4, 5),
        (BLACK_HOLE_IPV4, TIMEOUT_S),
    )
    assert here == ipv6 == name == both == READY
    assert silent == failed(ReasonCode.NETWORK_UNREACHABLE)  # the kernel says that the host cannot be reached
    assert unrouted == unknown(ReasonCode.NETWORK_UNREACHABLE)
    assert hole == failed(ReasonCode.TIMEOUT)


@pytest.mark.parametrize("host", [OWN_IPV4, OWN_IPV6])
def test_a_kernel_that_refuses_is_unknown_and_the_setting_is_named(tmp_path: Path, loop_name: str, host: str) -> None:
    """As Linux does for everyone, also root, unless a distribution sets it otherwise."""
    (verdict,) = verdicts_in_namespace(tmp_path, loop_name, (host, 5), groups="1 0")
    assert verdict == unknown(ReasonCode.PERMISSION_DENIED)
    assert "net.ipv4.ping_group_range" in verdict.reason


def test_only_the_reply_to_the_request_counts() -> None:
    question = EchoQuestion()
    question._types = (8, 0)
    request = question.encode()
    reply = b"\0" + request[1:]
    question.decode(reply)
    damaged = [
        request,
        b"",
        reply[:8],
        b"\3" + reply[1:],
        b"\0\1" + reply[2:],
        reply[:6] + b"\0\7" + reply[8:],
        reply[:-1] + bytes([reply[-1] ^ 1]),
    ]
    for data in damaged:
        with pytest.raises(InvalidAnswerError):
            question.decode(data)


@pytest.mark.parametrize("url", ["icmp:", "icmp://10.0.0.1:80", "icmp://10.0.0.1/x", "icmp:a b", "icmp://u@10.0.0.1"])
def test_a_url_without_a_host_alone_is_rejected(url: str) -> None:
    with pytest.raises(ProbeError):
        make_probe(url)


@pytest.mark.parametrize(
    "url", ["icmp:10.0.0.1", "icmp://10.0.0.1", "icmp:::1", "icmp://[::1]", "icmp:gateway.example"]
)
def test_a_host_is_accepted_with_and_without_slashes(url: str) -> None:
    make_probe(url)
