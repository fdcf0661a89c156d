"""How to fix a service: by reason code and kind, never by text. tests/wording has the hints of every state."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from svcnode.cli.probe import _options
from svcnode.cli.terminal.explain.details import parse_details
from svcnode.cli.terminal.explain.explanation import HOW_TO_FIX_IT, explain_service
from svcnode.cli.terminal.explain.hints import codes_to_fix, hint_texts
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.core.remedies import REMEDIES, advice_text
from svcnode.probes import make_probe
from svcnode.probes.function import FunctionProbe
from tests.support.service_scenario import LOADING, NO_FILES, REFUSED, ServiceScenario

URL = "postgresql://reader:hunter-of-secrets@db.example:5433/ledger"
DISPLAY_URL = "postgresql://reader:***@db.example:5433/ledger"
EXEC = make_probe("exec:/bin/false", allowed={"allow_exec"})


def scenario(verdict: Verdict, probe: Any = "tcp://db:1", **options: Any) -> ServiceScenario:
    return ServiceScenario(probe, start_period=0, **options).record(verdict)


def codes(scenario: ServiceScenario) -> list[str]:
    return list(codes_to_fix(parse_details(scenario.details())))


def advice(code: str, scenario: ServiceScenario) -> str:
    details = parse_details(scenario.details())
    return advice_text(code, details.id, details.kind, details.probe, details.timeout_s)


@pytest.mark.parametrize("verdict", [Verdict.not_ready, Verdict.unknown])
def test_the_code_of_the_newest_check_decides_and_not_its_text(verdict: Any) -> None:
    service = scenario(verdict("wrong password", code=ReasonCode.DISK_LOW))
    assert codes(service) == [ReasonCode.DISK_LOW]
    assert service.hints[0] == advice(ReasonCode.DISK_LOW, service)
    assert len(service.hints) == 2, "the advice, and the command to run the check by hand"
    assert codes(scenario(Verdict.failed("timeout"))) == [ReasonCode.OTHER]


@pytest.mark.parametrize("code", [ReasonCode.STARTING, ReasonCode.SYNCING, ReasonCode.LAGGING])
def test_waiting_is_no_advice_for_a_failed_service(code: ReasonCode) -> None:
    assert codes(scenario(Verdict.failed("text", code=code))) == [ReasonCode.OTHER]
    assert codes(scenario(Verdict.not_ready("text", code=code))) == [code]


def test_a_service_that_is_down_and_cannot_be_checked_has_two_codes_to_fix() -> None:
    service = ServiceScenario().record(*[REFUSED] * 18).record(NO_FILES)
    assert codes(service) == [ReasonCode.RESOURCE_EXHAUSTED, ReasonCode.CONNECTION_REFUSED]
    assert len(service.hints) == 3
    same = Verdict.unknown("text", code=ReasonCode.CONNECTION_REFUSED)
    assert len(ServiceScenario().record(*[REFUSED] * 18).record(same).hints) == 2, "one hint for the same code"


@pytest.mark.parametrize(
    ("probe", "code", "kind"),
    [
        ("http://h/", ReasonCode.PERMISSION_DENIED, "http"),
        ("svc+http://h", ReasonCode.NOT_FOUND, "svc"),
        ("svc+http://h", ReasonCode.AUTH_REQUIRED, "http"),
        ("postgres://u@h/d", ReasonCode.USER_DISABLED, "postgresql"),
        ("mariadb://u@h/d", ReasonCode.CLIENT_NOT_ALLOWED, "mysql"),
        ("file:/run/x", ReasonCode.TIMEOUT, "file"),
        (EXEC, ReasonCode.TIMEOUT, "exec"),
        (FunctionProbe(lambda: True), ReasonCode.TIMEOUT, "function"),
    ],
)
def test_some_kinds_have_advice_of_their_own(probe: Any, code: ReasonCode, kind: str) -> None:
    service = scenario(Verdict.not_ready("text", code=code), probe)
    details = parse_details(service.details())
    assert service.hints[0] == REMEDIES[code].by_kind[kind].format(timeout="3 s", id="db")
    assert details.timeout_s == 3


def test_all_other_kinds_have_the_general_advice() -> None:
    service = scenario(Verdict.not_ready("text", code=ReasonCode.TIMEOUT), "redis://h:1")
    assert service.hints[0] == REMEDIES[ReasonCode.TIMEOUT].advice.format(timeout="3 s", address="h:1")


@pytest.mark.parametrize(
    ("probe", "address"),
    [
        (None, ""),
        ("disk:/var", "disk:/var"),
        ("odd://[", "odd://["),
        ("odd://me:***@h:1/x", "h:1"),
        ("odd://h:99999999/x", "odd://h:99999999/x"),
        ("tcp://[::1]:80", "[::1]:80"),
        ("redis://db", "db"),
    ],
)
def test_the_address_is_taken_from_the_url_of_the_probe(probe: str | None, address: str) -> None:
    service = ServiceScenario("tcp://db:1", start_period=0).record(REFUSED)
    sections = explain_service(service.details() | {"probe": probe}).sections
    hint = dict(sections)[HOW_TO_FIX_IT][0]
    assert f" {address}" in hint
    assert "me:" not in hint


@pytest.mark.parametrize(
    ("code", "probe", "shown"),
    [
        (ReasonCode.CONNECTION_REFUSED, "redis://db", r"db \(.*redis\)"),
        (ReasonCode.HOST_NOT_FOUND, URL, r"getent hosts db\.example\."),
        (ReasonCode.TIMEOUT, "tcp://db:1", r" 0\.5 s"),
    ],
)
def test_advice_names_scheme_host_and_timeout_of_the_service(code: ReasonCode, probe: str, shown: str) -> None:
    assert re.search(shown, advice(code, scenario(REFUSED, probe, timeout="500ms")))


def test_a_service_of_a_configuration_is_checked_with_that_configuration() -> None:
    details = scenario(REFUSED).details() | {"config_file": "/etc/my node.toml", "id": "db 1"}
    command = [*hint_texts(parse_details(details))][-1].partition(": ")[2]
    assert shlex.split(command) == ["svcnode", "probe", "--service", "db 1", "--config", "/etc/my node.toml"]


def test_options_of_any_type_can_be_passed_on() -> None:
    table = {"json": {"/a": "x y", "/b": [1, True]}, "status": [200, "300-399"]}
    command = scenario(REFUSED, make_probe({"url": "http://db/x", **table})).hints[-1]
    arguments = shlex.split(command.partition("svcnode probe ")[2])
    given = [arguments[place + 1] for place, text in enumerate(arguments) if text == "--option"]
    assert _options(given) == table


def test_the_command_has_the_options_of_the_service_that_are_not_the_defaults() -> None:
    assert scenario(REFUSED).hints[-1].endswith(" svcnode probe tcp://db:1")
    command = scenario(Verdict.failed("no"), EXEC, timeout="500ms").hints[-1]
    assert command.endswith(" svcnode probe exec:/bin/false --allow-exec --timeout 0.5s")
    slow = Verdict.not_ready("slow", code=ReasonCode.SLOW)
    command = scenario(slow, max_latency="300ms").hints[-1]
    assert command.endswith(" svcnode probe tcp://db:1 --max-latency 0.3s")


def test_the_command_masks_passwords_and_options_that_may_hold_a_secret() -> None:
    command = scenario(REFUSED, URL).hints[-1]
    assert f" svcnode probe '{DISPLAY_URL}' (" in command
    assert "***" in command.partition("(")[2]
    probe = make_probe({"url": "http://db/x", "bearer": "abcd", "headers": {"X-Key": "efgh"}, "body": "ijkl"})
    service = scenario(REFUSED, probe)
    command = service.hints[-1]
    assert all(f"--option {shlex.quote(f'{name}=***')}" in command for name in ("bearer", "headers", "body"))
    assert not any(secret in "\n".join(service.explain().lines) for secret in ("abcd", "efgh", "ijkl"))


def test_the_command_for_an_older_node_says_that_options_may_be_missing() -> None:
    details = scenario(REFUSED, "tcp://db:1").details()
    del details["options"]
    assert "--option KEY=VALUE" in [*hint_texts(parse_details(details))][-1]


def test_the_command_for_a_list_of_arguments_shows_the_program_only() -> None:
    program = make_probe({"url": "exec:", "argv": ["/bin/check", "secret argument"]}, allowed={"allow_exec"})
    service = scenario(Verdict.failed("no"), program)
    assert any(line.startswith("probe   exec:/bin/check …, ") for line in service.explain().about)
    assert """ svcnode probe exec: --allow-exec --option 'argv=["/bin/check", …]'""" in service.hints[-1]
    assert "secret argument" not in "\n".join(service.explain().lines)


def test_a_function_has_no_command() -> None:
    service = scenario(LOADING, FunctionProbe(lambda: True))
    assert service.hints == (advice(ReasonCode.STARTING, service),)
