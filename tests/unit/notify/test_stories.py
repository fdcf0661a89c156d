"""Each story of docs/alerts.md, which is a row of a table "what happens | what is sent", is executed by a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.control import test_acks
from tests.unit.node import test_acknowledgements
from tests.unit.notify import (
    test_acknowledgement,
    test_alerts,
    test_causes,
    test_heartbeat,
    test_notifier,
    test_notify,
    test_routes,
)
from tests.unit.notify import test_turns as notify_turns
from tests.unit.sharing import test_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Test = Callable[..., Any] | str  # a string is "file::name": a test that starts processes is not imported

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "alerts.md"
# By the heading of a section: the first heading of its table of stories.
TABLES = {
    "Messages": "when",
    "One message per cause": "what happens",
    "Who gets what": "key",
    "Acknowledge": "when",
    "Restarts": "before the restart",
    "Several machines": "what happens",
    "Dead man's switch": "what happens",
}
HEARTBEAT = "tests/integration/test_heartbeat.py"
ACKNOWLEDGED = (
    "tests/integration/test_acknowledge.py::"
    "test_an_acknowledged_problem_is_not_escalated_also_after_a_kill_and_its_recovery_says_who_took_care_of_it"
)

# By all cells of the row but the last one, which is what is sent.
STORIES: dict[str, tuple[Test, ...]] = {
    # ---- Messages
    "a program reports an issue while the node is 503 already": (
        test_alerts.test_an_issue_is_told_while_the_node_is_unhealthy_and_also_after_a_restart,
    ),
    "a problem lasts": (
        test_alerts.test_a_reminder_has_all_that_is_open_and_every_message_restarts_its_time,
        test_alerts.test_after_a_restart_a_reminder_comes_an_interval_after_that,
    ),
    "somebody has [acknowledged](#acknowledge) the problem": (
        test_acknowledgement.test_an_acknowledged_service_and_the_node_that_fails_by_it_alone_have_no_reminders,
        test_acknowledgement.test_a_problem_that_is_acknowledged_before_it_is_told_is_told,
        test_acknowledgement.test_a_target_of_an_escalation_is_told_nothing_of_what_was_acknowledged_until_its_end,
    ),
    "a service that is not critical changes": (
        test_alerts.test_a_service_that_is_not_critical_is_told_with_the_node_and_causes_no_message_itself,
        test_alerts.test_services_all_and_none,
    ),
    "the service or the node is in [maintenance](operate.md#maintenance), or the node drains": (
        test_alerts.test_maintenance_holds_all_and_its_end_tells_what_is_wrong_and_what_is_over,
        test_alerts.test_during_a_drain_nothing_is_told_and_after_it_what_is_wrong_and_what_is_over,
    ),
    "the node starts or stops, or a service is new or has a new probe": (
        test_alerts.test_a_start_is_not_told_but_a_service_that_is_down_in_it_is,
        test_alerts.test_a_new_probe_is_a_start_with_its_own_limit_and_hides_no_recovery,
        test_alerts.test_what_waits_for_the_group_wait_is_told_before_a_stop,
        test_notifier.test_a_planned_stop_is_not_notified,
    ),
    "a service is Down while it starts": (test_alerts.test_a_start_is_not_told_but_a_service_that_is_down_in_it_is,),
    "a service that was reported is removed": (test_alerts.test_a_removed_service_ends_what_was_told_about_it,),
    # ---- One message per cause
    "`block-api` fails within `group_wait` before or after `ledger`": (
        test_causes.test_a_cause_and_its_effects_are_one_message_and_one_recovery,
        test_causes.test_an_effect_that_is_noticed_first_is_in_the_same_message,
    ),
    "`archive` fails later, while `ledger` is not Up": (
        test_causes.test_a_cause_and_its_effects_are_one_message_and_one_recovery,
        test_causes.test_an_effect_that_fails_later_is_listed_in_the_next_message,
    ),
    "`block-api` recovers before `ledger`": (test_causes.test_the_recovery_of_an_effect_waits_for_that_of_its_cause,),
    "`ledger` has recovered, and `block-api` has not": (
        test_causes.test_what_remains_is_told_when_the_cause_has_recovered,
    ),
    "`block-api` was reported before `ledger` failed": (
        test_causes.test_a_problem_that_was_told_before_its_cause_stays_told_and_recovers_by_itself,
    ),
    "`block-api` fails after `ledger` is Up again": (
        test_causes.test_a_service_that_fails_after_its_cause_is_up_again_is_told,
    ),
    "`block-api` is critical and Down, and `ledger` is only a warning": (
        test_causes.test_an_effect_that_is_more_severe_than_its_cause_is_told,
    ),
    "`ledger` is in maintenance, or removed": (
        test_causes.test_maintenance_of_the_cause_holds_only_the_cause,
        test_causes.test_what_remains_is_told_when_the_cause_is_removed,
    ),
    'the target does not get `ledger`, by `services`, `groups`, `min_severity` or `services = "critical"`': (
        test_causes.test_a_target_that_does_not_get_the_cause_gets_the_effect,
    ),
    # ---- Who gets what
    '`name = "pager"`': (
        test_notify.test_targets_on_one_host_are_numbered_and_recognized_by_their_url_or_by_a_given_name,
        test_notifier.test_the_others_are_told_of_a_target_that_fails_for_10_minutes_also_between_its_attempts,
    ),
    '`min_severity = "critical"`': (
        test_routes.test_a_target_for_critical_problems_gets_only_503_and_critical_services_that_are_down,
        test_routes.test_a_target_for_critical_problems_gets_issues,
    ),
    '`services = ["db-1"]`, `groups = ["storage"]`, `tags = ["eu"]`': (
        test_routes.test_a_target_with_services_groups_or_tags_gets_these_and_not_the_node,
    ),
    '`quiet_hours = "22:00-07:00"`, `timezone = "Europe/Berlin"`': (
        test_routes.test_in_quiet_hours_warnings_wait_for_one_summary_and_critical_problems_do_not,
        test_routes.test_quiet_hours_end_at_a_local_time_also_when_clocks_change,
    ),
    '`repeat_interval = "4h"`': (test_routes.test_a_target_may_have_its_own_interval_of_reminders,),
    '`escalate_after = "15m"`': (
        test_routes.test_an_escalation_gets_only_what_is_open_for_long,
        test_routes.test_what_failed_together_is_escalated_in_one_message,
        test_acknowledgement.test_a_target_of_an_escalation_is_told_nothing_of_what_was_acknowledged_until_its_end,
    ),
    # ---- Acknowledge
    "the service is Up, or the node is 200 again": (
        test_acknowledgement.test_an_acknowledged_service_and_the_node_that_fails_by_it_alone_have_no_reminders,
        test_acknowledgement.test_an_acknowledgement_of_the_node_ends_when_it_is_healthy,
        test_acknowledgement.test_a_target_of_an_escalation_is_told_the_recovery_of_what_was_acknowledged_later,
        test_acknowledgement.test_a_target_of_an_escalation_is_told_nothing_of_what_was_acknowledged_until_its_end,
    ),
    "it gets worse: Initializing, then Down; or 206, then 503": (
        test_acknowledgement.test_a_service_that_gets_worse_is_told_and_has_reminders_again,
        test_acknowledgement.test_a_worse_health_ends_the_acknowledgement_of_the_node_and_a_drain_does_not,
        test_acknowledgement.test_an_acknowledgement_also_covers_what_is_better_but_not_what_is_worse_again,
        test_acknowledgement.test_an_acknowledgement_of_the_node_ends_when_it_is_worse_again,
        test_acknowledgement.test_an_acknowledgement_outlives_a_restart_after_which_the_service_is_starting,
    ),
    "the time of `--until` has come": (
        test_acknowledgement.test_reminders_go_on_after_the_end_of_the_acknowledgement,
        test_acks.test_it_ends_at_its_time_also_while_the_node_does_not_run,
    ),
    "the service is removed, or not registered within 10 minutes after a restart": (
        test_acknowledgement.test_a_removed_service_is_told_as_such_with_its_acknowledgement,
        test_acknowledgements.test_it_ends_with_its_service_and_one_of_a_service_that_is_not_registered_yet_waits,
        test_acks.test_one_of_a_service_that_the_file_no_longer_has_is_forgotten,
    ),
    "the node or the machine is restarted": (
        test_acknowledgement.test_a_restart_forgets_no_acknowledgement,
        test_acks.test_it_survives_restarts_and_ends_when_the_problem_has_cleared,
        ACKNOWLEDGED,
    ),
    "another service fails, or there is a new issue": (
        test_acknowledgement.test_a_service_that_fails_later_is_told_and_the_node_has_reminders_again,
        test_acknowledgement.test_an_issue_is_not_acknowledged_with_the_services_nor_by_an_earlier_one_of_the_node,
    ),
    # ---- Restarts
    "a problem was reported | it lasts": (test_alerts.test_a_restart_forgets_nothing_that_was_told,),
    "a problem was reported | it is over": (test_alerts.test_a_restart_forgets_nothing_that_was_told,),
    "a problem was reported | the service is no longer configured": (
        test_alerts.test_a_problem_of_a_service_that_is_gone_after_a_restart_ends_as_no_longer_monitored,
    ),
    "a problem could not be delivered | it lasts; it is over": (
        test_alerts.test_what_a_target_was_not_told_before_a_kill_is_told_after_it,
        "tests/integration/test_notify.py::test_an_undelivered_incident_is_notified_after_a_restart",
    ),
    "a problem was due, but the process was killed within `group_wait` | it lasts; it is over": (
        test_alerts.test_a_problem_of_a_process_that_was_killed_within_the_group_wait_is_told_if_it_lasts,
    ),
    # ---- Several machines
    "the sender is killed or suspended": (
        test_turns.test_what_was_told_is_not_told_again_when_the_sender_is_killed,
        test_turns.test_what_was_not_told_is_told_by_the_next_sender,
        test_turns.test_only_the_message_in_flight_comes_twice,
        test_turns.test_a_replica_that_was_suspended_sends_nothing_old,
        "tests/integration/test_senders.py::test_one_replica_sends_and_when_it_is_killed_another_one_continues",
    ),
    "the sender alone is cut off from etcd": (
        test_turns.test_a_sender_that_alone_is_cut_off_goes_on_and_another_one_continues,
    ),
    "the sender is stopped or drained": (
        test_turns.test_a_planned_stop_hands_over_at_once,
        test_turns.test_a_drained_replica_lets_another_send,
    ),
    "the sender cannot reach the target": (
        notify_turns.test_a_replica_that_cannot_deliver_passes_its_turn_on_until_its_next_attempt,
        test_turns.test_a_sender_that_cannot_deliver_lets_another_try,
    ),
    "etcd is unreachable, or refuses all writes": (
        test_turns.test_the_last_sender_goes_on_while_etcd_is_away,
        test_turns.test_after_a_minute_without_etcd_every_replica_sends,
        test_turns.test_every_replica_sends_if_nobody_may_write,
    ),
    "a replica alone is cut off from etcd for a minute": (
        test_turns.test_what_was_told_without_etcd_is_ended_by_the_sender,
    ),
    "evidence from other replicas was missing (`registry_lost`), and is back before `group_wait` has ended": (
        test_alerts.test_evidence_of_others_that_was_missing_for_a_moment_is_no_message,
        test_turns.test_evidence_that_was_lost_for_a_moment_is_no_message,
    ),
    # ---- Dead man's switch
    "SIGKILL, SIGSTOP, out of memory, power off, or the network is cut": (
        test_heartbeat.test_a_switch_that_hangs_or_fails_is_asked_once_per_interval_and_logged_once,
        f"{HEARTBEAT}::test_a_node_that_cannot_alert_is_silent_within_two_intervals_whatever_stops_it",
    ),
    "the event loop is blocked, or the scheduler has stopped": (
        f"{HEARTBEAT}::test_a_node_that_cannot_alert_is_silent_within_two_intervals_whatever_stops_it",
        test_heartbeat.test_without_a_scheduler_that_runs_there_is_silence,
    ),
    "a target fails for more than 5 minutes": (
        test_heartbeat.test_while_a_target_fails_for_minutes_there_is_silence_until_messages_arrive_again,
    ),
    "the node or a service is Down, or in maintenance": (
        test_heartbeat.test_one_is_sent_at_each_interval_after_the_first_also_while_the_node_is_down_or_in_maintenance,
    ),
    "you stop the node": (
        test_heartbeat.test_settings_change_the_switch_and_a_planned_stop_ends_the_heartbeats,
        f"{HEARTBEAT}::test_a_reload_changes_the_heartbeat_a_planned_stop_ends_it_and_its_secret_is_never_shown",
    ),
}


def rows(section: str, heading: str) -> Iterator[str]:
    """Of the table of a section that begins with this heading, without its last column."""
    text = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert text, f"no section {section}"
    table = re.search(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text[1], re.MULTILINE)
    assert table, f"no table in {section}"
    for line in table[1].splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        yield " | ".join(cells[:-1])


@pytest.mark.skipif(not PAGE.exists(), reason="the wheel has no pages")
def test_each_story_has_tests_and_each_entry_is_a_story() -> None:
    found = [row for section, heading in TABLES.items() for row in rows(section, heading)]
    assert len(found) == len(set(found))
    assert set(found) == STORIES.keys()


@pytest.mark.parametrize("story", STORIES)
def test_the_tests_of_a_story_exist(story: str) -> None:
    for test in STORIES[story]:
        if isinstance(test, str):
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(), test
        else:
            assert test.__name__.startswith("test_")
            assert test.__module__.rpartition(".")[2].startswith("test_")
