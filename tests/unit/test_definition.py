"""From the words people write about a service to its definition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.model import REPORTED_POLICY, Impact, Verdict
from svcnode.definition import ServiceOptions, define
from svcnode.probes import KINDS, make_probe
from svcnode.probes.base import Probe
from svcnode.probes.http import HttpProbe
from svcnode.probes.sqlite import SqliteProbe


@dataclass(frozen=True)
class SomeProbe:
    target: str = "somewhere"

    async def check(self) -> Verdict:
        raise AssertionError("nobody looks in these tests")


# ---- what it is


def test_an_id_is_enough() -> None:
    service = define("db-1").service
    assert (service.id, service.name, service.description, service.impact) == ("db-1", "db-1", "", Impact.PARTIAL)


def test_an_empty_name_is_a_name() -> None:
    assert define("db-1", name="").service.name == ""


@pytest.mark.parametrize("impact", list(Impact))
def test_an_impact_may_be_written_or_passed(impact: Impact) -> None:
    assert define("db-1", impact=impact.value).service.impact is define("db-1", impact=impact).service.impact is impact


def test_an_unknown_impact_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidValueError, match='impact is one of "critical", "partial", "none", not "high"'):
        define("db-1", impact="high")


# ---- who brings the evidence


def test_without_a_probe_what_is_reported_holds_at_once_and_for_ever() -> None:
    definition = define("db-1")
    assert definition.probe_config is None
    assert definition.service.policy == REPORTED_POLICY
    assert (REPORTED_POLICY.rise, REPORTED_POLICY.fall, REPORTED_POLICY.start_period_s) == (1, 1, 0.0)
    assert (REPORTED_POLICY.stale_after_s, REPORTED_POLICY.ttl_s) == (None, None)


def test_a_ttl_limits_how_long_a_report_holds() -> None:
    definition = define("db-1", ttl="30s")
    assert definition.probe_config is None
    assert (definition.service.policy.ttl_s, definition.service.policy.stale_after_s) == (30.0, None)
    assert (definition.service.policy.rise, definition.service.policy.fall) == (1, 1)


def test_a_service_has_a_probe_or_a_ttl_but_not_both() -> None:
    with pytest.raises(InvalidValueError, match="not both"):
        define("db-1", probe=SomeProbe(), ttl="30s")


@pytest.mark.parametrize("ttl", [0, "0s"])
def test_a_ttl_is_more_than_nothing(ttl: str | float) -> None:
    with pytest.raises(InvalidValueError, match="ttl must be more than 0 seconds"):
        define("db-1", ttl=ttl)


@pytest.mark.parametrize("probe", [None, SomeProbe()])
@pytest.mark.parametrize("words", [{"rise": "2"}, {"rise": [2]}, {"fall": 1.5}, {"fall": True}, {"fall": 0}])
def test_rise_and_fall_are_refused_where_they_are_no_count_of_looks(probe: Probe | None, words: dict[str, Any]) -> None:
    define("db-1", probe=SomeProbe(), rise=1, fall=1)  # what was kept of it is not taken for True
    [(word, number)] = words.items()
    with pytest.raises(InvalidValueError) as refused:
        define("db-1", probe=probe, **words)
    assert str(refused.value).startswith(f"{word} counts looks in a row, so it is a whole number from 1 to 1000, not ")
    assert str(refused.value).endswith(repr(number))


def test_a_probed_service_has_the_decided_defaults() -> None:
    definition = define("db-1", probe=SomeProbe())
    policy = definition.service.policy
    assert definition.probe_config is not None
    assert (definition.probe_config.schedule.interval_s, definition.probe_config.schedule.timeout_s) == (10.0, 3.0)
    assert (policy.rise, policy.fall, policy.start_period_s) == (2, 3, 30.0)
    assert policy.stale_after_s == 3 * 10.0 + 3.0


def test_every_word_of_the_schedule_and_the_policy_is_heard() -> None:
    definition = define(
        "db-1", probe=SomeProbe(), interval="5s", timeout="500ms", rise=4, fall=5, start_period="2m", stale_after="1h"
    )
    policy = definition.service.policy
    assert definition.probe_config is not None
    assert (definition.probe_config.schedule.interval_s, definition.probe_config.schedule.timeout_s) == (5.0, 0.5)
    assert (policy.rise, policy.fall, policy.start_period_s, policy.stale_after_s) == (4, 5, 120.0, 3600.0)


def test_the_default_of_stale_after_follows_the_interval_and_the_timeout() -> None:
    assert define("db-1", probe=SomeProbe(), interval=2, timeout=1).service.policy.stale_after_s == 7.0


@pytest.mark.parametrize("stale_after", ["0s", "4s", "10s", 10])
def test_evidence_that_would_be_stale_before_the_next_look_is_refused(stale_after: str | float) -> None:
    with pytest.raises(
        InvalidValueError,
        match=r'^stale_after \(\d+ s\) must be longer than the interval \(10 s\), .*; set it to "33s", the default',
    ):
        define("db-1", probe=SomeProbe(), interval="10s", stale_after=stale_after)


def test_evidence_that_would_count_for_ever_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"^stale_after \(36500 days\) is more than 7 days"):
        define("db-1", probe=SomeProbe(), stale_after="36500d")


def test_evidence_may_be_stale_soon_after_the_next_look_was_due() -> None:
    assert define("db-1", probe=SomeProbe(), interval="10s", stale_after="10.1s").service.policy.stale_after_s == 10.1


def test_without_looks_there_is_nothing_that_stale_after_could_be_too_short_for() -> None:
    words: ServiceOptions = {"interval": "10s", "stale_after": "1s"}
    for how in (ServiceOptions(), ServiceOptions(ttl="30s"), ServiceOptions(probe="heartbeat:30s")):
        assert define("db-1", **(words | how)).service.policy.stale_after_s is None


def test_a_short_interval_brings_its_own_short_timeout() -> None:
    watch = define("db-1", probe=SomeProbe(), interval="1s").probe_config
    assert watch is not None
    assert watch.schedule.timeout_s == 0.5


def test_a_timeout_that_does_not_fit_the_interval_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="below the interval"):
        define("db-1", probe=SomeProbe(), interval="1s", timeout="1s")


def test_looks_may_be_more_frequent_while_a_change_is_pending() -> None:
    watch = define("db-1", probe=SomeProbe(), interval="10s", transition_interval="500ms").probe_config
    assert watch is not None
    assert watch.schedule.wait_s(is_change_pending=True) == 0.5
    assert watch.schedule.wait_s(is_change_pending=False) == 10.0


def test_without_a_word_they_are_five_times_as_frequent() -> None:
    watch = define("db-1", probe=SomeProbe(), interval="20s").probe_config
    assert watch is not None
    assert watch.schedule.wait_s(is_change_pending=True) == 4.0


def test_a_transition_interval_longer_than_the_interval_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"the transition_interval \(11 s\) must be .* the interval \(10 s\)"):
        define("db-1", probe=SomeProbe(), interval="10s", transition_interval="11s")


@pytest.mark.parametrize(("words", "seconds"), [("250ms", 0.25), (2, 2.0), (None, None)])
def test_how_long_a_success_may_take_is_part_of_the_looking(words: str | float | None, seconds: float | None) -> None:
    watch = define("db-1", probe=SomeProbe(), max_latency=words).probe_config
    assert watch is not None
    assert watch.max_latency_s == seconds


@pytest.mark.parametrize("max_latency", [0, "0s", "3s", "1m"])
def test_a_max_latency_that_no_success_or_every_success_would_keep_is_refused(max_latency: str | float) -> None:
    with pytest.raises(InvalidValueError, match=r"max_latency \(.+ s\) must be .* below the timeout \(3 s\)"):
        define("db-1", probe=SomeProbe(), max_latency=max_latency)


def test_equal_words_make_equal_definitions() -> None:
    assert define("db-1", probe=SomeProbe(), interval="5s") == define("db-1", probe=SomeProbe(), interval=5)
    assert define("db-1", probe=SomeProbe("elsewhere")) != define("db-1", probe=SomeProbe())


# ---- probes by URL


def test_a_probe_may_be_named_by_its_url() -> None:
    watch = define("db-1", probe="sqlite:/var/lib/ledger.db").probe_config
    assert watch is not None
    assert watch.probe == SqliteProbe.for_path(Path("/var/lib/ledger.db"))


def test_a_probe_may_be_a_table_with_its_url_and_its_options() -> None:
    watch = define(
        "api", probe={"url": "http://127.0.0.1:8080/health", "status": [200, "204"], "method": "HEAD"}
    ).probe_config
    assert watch is not None
    assert isinstance(watch.probe, HttpProbe)
    assert (watch.probe.url.path, watch.probe.method, watch.probe.status) == ("/health", "HEAD", frozenset({200, 204}))


def test_a_table_without_options_is_as_good_as_its_url() -> None:
    assert define("api", probe={"url": "tcp://127.0.0.1:5432"}) == define("api", probe="tcp://127.0.0.1:5432")


def test_a_table_of_the_caller_is_left_as_it_is() -> None:
    words = {"url": "http://127.0.0.1:8080", "status": "2xx"}
    define("api", probe=words)
    assert words == {"url": "http://127.0.0.1:8080", "status": "2xx"}


def test_an_option_that_the_kind_does_not_have_is_refused_with_the_likely_one() -> None:
    with pytest.raises(OptionError, match="starting_status"):
        define("api", probe={"url": "http://127.0.0.1:8080", "starting_statu": 503})


def test_a_table_without_a_url_is_refused() -> None:
    with pytest.raises(ProbeError, match="a probe has a url"):
        define("api", probe={"status": 200})


# ---- heartbeats and programs


@pytest.mark.parametrize("probe", ["heartbeat:30s", {"url": "heartbeat:", "ttl": "30s"}])
def test_a_heartbeat_is_heard_and_not_looked_for(probe: str | dict[str, str]) -> None:
    assert define("worker", probe=probe) == define("worker", ttl="30s")


def test_a_heartbeat_listens_to_no_word_about_looking() -> None:
    words = {"interval": "5s", "timeout": "1s", "rise": 4, "fall": 5, "start_period": "2m", "stale_after": "1h"}
    assert define("worker", probe="heartbeat:30s", **words) == define("worker", ttl="30s")  # type: ignore[arg-type]


def test_a_heartbeat_names_its_ttl_once() -> None:
    with pytest.raises(InvalidValueError, match="not both"):
        define("worker", probe="heartbeat:30s", ttl="30s")


@pytest.mark.parametrize("probe", ["exec:/bin/true", {"url": "exec:", "argv": ["/bin/true"]}])
def test_a_program_is_not_run_because_a_url_says_so(probe: str | dict[str, object]) -> None:
    with pytest.raises(ProbeError, match=r"exec probes run programs on this machine; .* allow_exec = true"):
        define("db-1", probe=probe)


def test_a_program_may_be_run_by_whoever_made_its_probe() -> None:
    probe = make_probe("exec:/bin/true", allowed={"allow_exec"})
    watch = define("db-1", probe=probe).probe_config
    assert watch is not None
    assert watch.probe is probe


# ---- every kind

URLS = {
    "disk": "disk:/somewhere",
    "exec": "exec:true",
    "file": "file:/somewhere",
    "heartbeat": "heartbeat:5s",
    "mariadb": "mariadb://me:pw@127.0.0.1:1/ledger",
    "mysql": "mysql://me:pw@127.0.0.1:1/ledger",
    "sqlite": "sqlite:/somewhere",
}
OPTIONS = {"jsonrpc": {"method": "ping"}}


@pytest.mark.parametrize("scheme", KINDS)
def test_every_kind_in_the_table_can_be_loaded(scheme: str) -> None:
    words = {"url": URLS.get(scheme, f"{scheme}://127.0.0.1:1"), **OPTIONS.get(scheme.partition("+")[0], {})}
    assert hasattr(make_probe(words, allowed={"allow_exec"}), "check")


def test_a_misspelled_scheme_is_refused_with_the_likely_one() -> None:
    with pytest.raises(ProbeError, match=r'unknown scheme "sqlit"; did you mean "sqlite"\?'):
        define("db-1", probe="sqlit:/var/lib/ledger.db")


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ProbeError, match=r'unknown scheme "gopher"; known ones: .*sqlite'):
        define("db-1", probe="gopher://example.org")


def test_what_is_no_url_is_refused_with_one_that_is() -> None:
    with pytest.raises(ProbeError, match=r"not a URL, which begins with a scheme and a colon, such as tcp:"):
        define("db-1", probe="ledger")


def test_what_cannot_look_is_no_probe() -> None:
    with pytest.raises(InvalidValueError, match=r"an object with check\(\), not 5"):
        define("db-1", probe=5)  # type: ignore[arg-type]  # that it is an error is what is tested


def test_an_interval_is_at_most_a_day() -> None:
    assert define("db-1", probe=SomeProbe(), interval="1d").probe_config is not None
    with pytest.raises(InvalidValueError, match="more than a day"):
        define("db-1", probe=SomeProbe(), interval="25h")
