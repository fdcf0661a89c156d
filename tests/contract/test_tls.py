"""Every kind that uses TLS against every fault of a certificate and of a handshake."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode as Code
from svcnode.core.model import Outcome
from svcnode.net.trace import record_steps
from svcnode.probes import make_probe
from svcnode.probes.run import run_check
from tests.contract.checks import assert_failed, judge
from tests.contract.faults import CLOSED, FAULTS, HANDSHAKE_FAULTS, Fault, FaultyServer, say_nothing
from tests.contract.kinds import TLS_KINDS, Kind
from tests.support.backends import Backend, closed_port, reissued, server_tls
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.verdicts import failed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.check_runner import CheckRunner

every_kind = pytest.mark.parametrize("kind", TLS_KINDS, ids=str)
every_client = pytest.mark.parametrize("kind", [kind for kind in TLS_KINDS if kind.has_own_client], ids=str)
# The others are read as without TLS.
INSIDE = ["silent", "closed", "reset after the first byte", "endless zeros", "echo"]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(kind, fault) for kind in TLS_KINDS for fault in HANDSHAKE_FAULTS if kind.has_own_client or fault == "silent"],
    ids=str,
)
def test_a_faulty_handshake_is_failed(check: CheckRunner, kind: Kind, fault: str, certificate: Certificate) -> None:
    found = HANDSHAKE_FAULTS[fault]
    if kind.row.has_own_tls:
        found = replace(found, codes=found.codes | {Code.TIMEOUT})
    assert_failed(check, kind, found, ca=str(certificate.certificate))


@every_client
@pytest.mark.parametrize("fault", INSIDE)
def test_a_faulty_server_is_failed_inside_tls(
    check: CheckRunner, kind: Kind, fault: str, certificate: Certificate
) -> None:
    found = replace(FAULTS[fault], codes=FAULTS[fault].codes | CLOSED)
    assert_failed(check, kind, found, server_tls(certificate), ca=str(certificate.certificate))


@every_kind
def test_a_certificate_that_is_not_valid_is_failed(
    check: CheckRunner, kind: Kind, certificate: Certificate, tmp_path: Path
) -> None:
    expired, other = reissued(certificate, tmp_path, days_left=-1), make_certificate(tmp_path, "other")
    ca = str(certificate.certificate)
    for served, options, code in (
        (certificate, {}, Code.TLS_UNTRUSTED),
        (certificate, {"ca": str(other.certificate)}, Code.TLS_UNTRUSTED),
        (certificate, {"ca": ca, "server_name": "other.example"}, Code.TLS_NAME_MISMATCH),
        (expired, {"ca": str(expired.certificate)}, Code.TLS_EXPIRED),
    ):
        codes = {code, Code.TLS_UNTRUSTED} if kind.row.has_own_tls else {code}
        fault = Fault(script=say_nothing, codes=frozenset(codes))
        assert_failed(check, kind, fault, server_tls(served), **options)


@every_kind
def test_the_name_of_the_certificate_is_an_option(check: CheckRunner, kind: Kind, certificate: Certificate) -> None:
    """The server closes the connection after the handshake."""
    server = FaultyServer(kind, FAULTS["closed"], server_tls(certificate))
    with Backend(server, host="127.0.0.2") as backend, record_steps() as steps:
        config = kind.config(backend.address, ca=str(certificate.certificate), server_name="localhost")
        assert judge(check, config, backend.port) == failed(Code.CONNECTION_CLOSED)
    assert all(step.is_done for step in steps if step.name == "handshake")


@every_kind
def test_a_file_of_an_authority_that_is_missing_is_unknown(
    check: CheckRunner, kind: Kind, certificate: Certificate, tmp_path: Path
) -> None:
    """The fault is on this machine. The file is deleted after the probe was made."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(certificate.certificate.read_bytes())
    with closed_port() as port:
        probe = make_probe(kind.config(f"127.0.0.1:{port}", ca=str(ca)))
        ca.unlink()
        verdict, _ = check.run(run_check(probe, WAIT_TIMEOUT_S))
    assert verdict.outcome is Outcome.UNKNOWN
    assert str(ca) in verdict.reason
