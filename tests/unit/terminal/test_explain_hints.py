"""How to fix it, by the reasons that probes and servers really give."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from svcnode.core.model import Verdict
from svcnode.probes import make_probe
from svcnode.probes.function import FunctionProbe
from svcnode.terminal.explain.explanation import explain_service
from tests.support.operator_context import OperatorHarness

URL = "postgresql://reader:word-of-pass@db.example:5433/ledger"
SHOWN = "postgresql://reader:***@db.example:5433/ledger"


def hints(verdict: Verdict, *, probe: Any = URL, **words: Any) -> list[str]:
    scene = OperatorHarness()
    scene.node.register("db", probe=probe, start_period=0, **words)
    scene.record("db", verdict)
    return list(dict(explain_service(scene.details("db"), UTC).sections)["How to fix it"])


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        (f"connection refused: {SHOWN}", "Nothing listens at db.example:5433. Is the server running?"),
        ("connection refused: db:5432", "Nothing listens at db:5432."),
        ("no such host: db.example:5433", "knows no host of the name db.example. Is it spelled right"),
        ("network is unreachable: db:1", "There is no way from the node's machine to db:1"),
        ("no answer within 3 s, in its step connect", "No connection comes about at db.example:5433."),
        ("no answer within 3 s, in its step handshake", "the TLS handshake does not end"),
        ("no answer within 3 s, in its step exchange", "Or something else listens at db.example:5433."),
        ("no answer within 3 s, in its step log in", "It takes the connection, but does not answer within 3 s"),
        ("no answer within 3 s", "It does not answer within 3 s: it may be frozen"),
        ("no answer within 3 s, in its step run", "The program of the probe does not end within 3 s"),
        ("its previous run has not returned yet", "It does not answer within 3 s"),
        # as the servers themselves say it
        (f'password authentication failed for user "reader": {SHOWN}', "The server is there, and refuses the login."),
        (f"fe_sendauth: no password supplied: {SHOWN}", "The server asks for a login, and the probe brings none"),
        (f'role "reader" does not exist: {SHOWN}', "refuses the login: it has no such user."),
        (f'role "postgres" is not permitted to log in: {SHOWN}', "refuses the login: it knows that user, but not as"),
        (f'no pg_hba.conf entry for host "127.0.0.1": {SHOWN}', "refuses the login: its pg_hba.conf does not let"),
        (f'permission denied for database "ledger": {SHOWN}', "grant it that right"),
        (f'database "ledger" is not currently accepting connections: {SHOWN}', "lets nobody into that database"),
        (f"the database system is shutting down: {SHOWN}", "The server is being stopped"),
        (f'database "ledger" does not exist: {SHOWN}', "what was asked for is not"),
        (f"sorry, too many clients already: {SHOWN}", "no connection left to give"),
        (f'too many connections for role "reader": {SHOWN}', "no connection left to give"),
        (
            f"remaining connection slots are reserved for roles with the SUPERUSER attribute: {SHOWN}",
            "no connection left to give",
        ),
        ("Access denied for user 'me'@'h' (using password: YES) (1045): mysql://me:***@db", "Check the user name and"),
        ("Access denied for user 'me'@'h' (using password: NO) (1045): mysql://me@db", "the probe brings none"),
        ("Access denied for user 'me'@'%' to database 'x' (1044): mysql://me:***@db/x", "grant it that right"),
        (
            "Host '10.0.0.7' is blocked because of many connection errors; unblock with '…' (1129): mysql://me:***@db",
            "The server has shut out the node's machine",
        ),
        (
            "Host '10.0.0.7' is not allowed to connect to this MariaDB server (1130): mysql://me:***@db",
            "no user who may come from the node's machine",
        ),
        (
            "User 'me' has exceeded the 'max_user_connections' resource (current value: 1) (1226): mysql://me:***@db",
            "no connection left to give",
        ),
        ("Server shutdown in progress (1053): mysql://me:***@db", "The server is being stopped"),
        ("Unknown database 'x' (1049): mysql://me:***@db/x", "what was asked for is not"),
        ("Too many connections (1040): mysql://me:***@db", "no connection left to give"),
        ("invalid username-password pair or user is disabled: redis://db", "refuses the login"),
        ("WRONGPASS invalid username-password pair: redis://db", "Check the user name and"),
        ("Authentication required: redis://db", "asks for a login"),
        ("NOAUTH Authentication required: redis://db", "asks for a login"),
        ("User me has no permissions to run the 'ping' command: redis://db", "grant it that right"),
        ("this user has no permissions to run the 'ping' command: redis://db", "grant it that right"),
        ("max number of clients reached: redis://db", "no connection left to give"),
        ("DB index is out of range: redis://db/99", "what was asked for is not"),
        (
            "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN: amqp://me:***@db",
            "Check the user name and",
        ),
        ("ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'me': amqp://db", "grant it that right"),
        ("NOT_ALLOWED - access to vhost '/' refused for user 'me': amqp://db", "grant it that right"),
        ("NOT_ALLOWED - vhost x not found: amqp://db/x", "what was asked for is not"),
        (
            "NOT_ALLOWED - access to vhost '/' refused for user 'me': connection limit (1) is reached: amqp://db",
            "no connection left to give",
        ),
        ("Authorization Violation: nats://db", "Check the user name and"),
        ("maximum connections exceeded: nats://db", "no connection left to give"),
        ("maximum account active connections exceeded: nats://db", "no connection left to give"),
        ('Permissions Violation for Publish to "x": nats://db', "grant it that right"),
        ("answered 400: http://db/", "where https is meant"),
        ("answered 401: http://db/", "or its option bearer or headers"),
        ("answered 401, which is no answer of this interface: svc+http://db", "or its option bearer or headers"),
        ("answered 403: http://db/", "it may not let the node's machine in"),
        ("answered 405: http://db/", "its option method"),
        ("answered 429: http://db/", "look less often (interval)"),
        ("eth_syncing: answered 401 with what is no JSON-RPC reply: http://db", "or its option bearer or headers"),
        ("eth_syncing: answered 200 with what is no JSON-RPC reply: http://db", "Something else answers at db.example"),
        ("web3_x: error -32601: the method does not exist: http://db", "check the option method"),
        ('answered 200, but its body does not hold "password": http://db/', "not what the probe expects"),
        ('heard "-ERR password", and not "+OK", within 3 s', "the probe's option expect"),
        ('it did not say what was expected, but "-ERR loading": db:1', "listens at db:1? Compare what it says"),
        ("answered 404: http://db/", "nothing under that path"),
        ("answered 503: http://db/", "It answers with an error of its own"),
        ("answered 302, a redirect to http://db/login: http://db/", "let the probe follow (redirects = 1)"),
        ("answered 302, a redirect past the limit, to /x: http://db/", "It sends whoever asks elsewhere"),
        ('answered 200, but /status is "no": http://db/', "not what the probe expects"),
        ("its certificate is not valid: certificate has expired: db:1", "Its certificate has expired: renew it"),
        ("its certificate is not valid: self-signed certificate: db:1", "as its option ca"),
        ("its certificate is not valid: unable to get local issuer certificate: db:1", "as its option ca"),
        (
            "its certificate is not valid: Hostname mismatch, certificate is not valid for 'db': db:1",
            "Its certificate is for another name",
        ),
        ("TLS: wrong version number: db:5432", "It does not speak TLS at db:5432"),
        ("TLS: tlsv13 alert certificate required: db:5432", "want a certificate of the client"),
        ("connection reset by peer: db:5432", "Something takes the connection at db:5432, and ends it."),
        (f"it closed the connection before it had answered: {SHOWN}", "Something takes the connection at db.example"),
        ("Connection closed by server: redis://db:1", "Something takes the connection"),
        ("what came back is not Redis: redis://db:1", "Something else answers at"),
        ("no such file or directory: /run/app.pid", "It is not there. Is the path right?"),
        ("permission denied: /run/app.pid", "may not read it"),
        ("64 of 252 GiB are free, less than min_free, 90%: /", "make room there"),
        ("3600 s old, allowed are 60 s: /run/beat", "does the program run that writes it?"),
        ("database disk image is malformed: /a.db", "The file is damaged"),
        ("it follows chain 1, not 5: http://db", "another chain"),
        ("it does not answer health checks: grpc://db", "does not tell the health"),
        ("unhealthy: svc+http://db", "ask it why, with svcnode explain --url"),
        ("down: service password of svc+http://db", "ask it why, with svcnode explain --url"),
        ("not found there, so it is no such node, prefix or service: service x of svc+http://db", "the option service"),
        ("not found there, so it is no such node, prefix or service: svc+http://db", "or the option prefix"),
    ],
)
def test_a_failure_comes_with_what_to_mend(reason: str, hint: str) -> None:
    told = hints(Verdict.failed(reason))
    assert hint in told[0]
    assert len(told) == 2, "and how to look by hand"


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("the database system is starting up: db", "It is starting or catching up"),
        ("Redis is loading the dataset in memory: db", "It is starting or catching up"),
        ("syncing, at block 1 of 2: db", "It is starting or catching up"),
        ("a replica 12.0 s behind, max_lag is 5 s: db", "It is starting or catching up"),
        ("0 peers, min_peers is 1: db", "too few peers"),
        ("in recovery, so it is not the primary: db", "another role"),
        ("a replica whose link to its primary is down: db", "Replication has stopped"),
        ("it has no leader: db", "The cluster has no leader"),
        ("the database is locked: db", "Another program holds the database"),
        ("its certificate expires in 3.0 days, before min_cert_days is reached", "Its certificate ends soon"),
        ("slow: it took 2 s, max_latency is 1 s", "raise max_latency"),
    ],
)
def test_one_that_is_not_ready_comes_with_what_to_do(reason: str, hint: str) -> None:
    assert hint in hints(Verdict.not_ready(reason))[0]


@pytest.mark.parametrize("reason", ["syncing: db", "the database system is starting up: db", "loading: db"])
def test_nobody_is_told_to_wait_for_what_has_failed(reason: str) -> None:
    assert hints(Verdict.failed(reason))[0].startswith("Its own log may say more")


OWN_WORDS = [
    "wrong password",
    "timeout",
    "the database is locked",
    "syncing",
    "connection refused: db:1",
    "answered 404",
]


@pytest.mark.parametrize("words", OWN_WORDS)
def test_the_words_of_a_program_are_not_taken_for_ours(words: str) -> None:
    program = make_probe("exec:/bin/false", allowed={"allow_exec"})
    for verdict in (Verdict.failed(f"exit 1: {words}"), Verdict.not_ready(f"exit 75: {words}")):
        assert hints(verdict, probe=program)[0].startswith("The program of the probe says so: run it by hand")


@pytest.mark.parametrize("words", OWN_WORDS)
def test_the_words_of_a_function_are_not_taken_for_ours(words: str) -> None:
    assert hints(Verdict.failed(words), probe=FunctionProbe(lambda: True)) == [
        "The function that looks at it says so: see what it does, and the log of its program."
    ]


@pytest.mark.parametrize("words", OWN_WORDS)
def test_the_words_of_a_report_are_not_taken_for_ours(words: str) -> None:
    scene = OperatorHarness()
    scene.node.register("db").down(words)
    told = dict(explain_service(scene.details("db"), UTC).sections)["How to fix it"]
    assert told == ("The program that reports for it says so: its own log may say more.",)


@pytest.mark.parametrize(
    ("verdict", "hint"),
    [
        (Verdict.failed("no answer within 3 s, in its step run"), "does not end within 3 s"),
        (Verdict.not_ready("slow: it took 2 s, max_latency is 1 s"), "raise max_latency"),
        (Verdict.unknown("cannot run /x: permission denied"), "check its path and its permissions"),
        (Verdict.unknown("cannot run /x: too many open files"), "ulimit -n"),
        (Verdict.unknown("this machine cannot look: cannot allocate memory"), "has run out of something"),
    ],
)
def test_what_the_look_says_of_a_program_is_ours(verdict: Verdict, hint: str) -> None:
    assert hint in hints(verdict, probe=make_probe("exec:/bin/false", allowed={"allow_exec"}))[0]


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("the resolver failed: db:5432", "cannot resolve names"),
        ("the resolver did not answer within 3 s", "cannot resolve names"),
        ("this machine cannot look: too many open files", "ulimit -n"),
        ("this machine cannot look: cannot allocate memory", "has run out of something"),
        ("the probe itself failed: ValueError: x", "a fault of the probe, not of the service"),
        ('redis probes need their driver: pip install "svcnode[redis]"', "Install the driver where the node runs"),
        ("cannot run /x: permission denied", "check its path and its permissions"),
    ],
)
def test_what_keeps_us_from_looking_is_for_us_to_mend(reason: str, hint: str) -> None:
    assert hint in hints(Verdict.unknown(reason))[0]


def test_a_reason_that_nobody_knows_leads_to_the_log() -> None:
    assert hints(Verdict.failed("it is a Monday"))[0] == "Its own log may say more, from less than a second ago on."


def test_without_a_port_the_usual_one_is_meant() -> None:
    (hint, _) = hints(Verdict.failed("connection refused: redis://db"), probe="redis://db")
    assert hint.startswith("Nothing listens at db, at the usual port of redis.")


def test_a_host_without_a_port_is_named_alone() -> None:
    (hint, _) = hints(Verdict.failed("no such host: redis://db.example"), probe="redis://db.example")
    assert "`getent hosts db.example` find it" in hint


def test_an_address_in_brackets_stays_whole() -> None:
    (hint, _) = hints(Verdict.failed("connection refused: [::1]:80"), probe="tcp://[::1]:80")
    assert hint.startswith("Nothing listens at [::1]:80.")


def test_a_password_has_to_be_put_in_by_hand() -> None:
    assert hints(Verdict.failed("no"))[-1] == (
        f"To look by hand, on the node's machine: svcnode probe '{SHOWN}' (add what *** stands for, and the probe's "
        "options, if any, as --option KEY=VALUE)"
    )


def test_by_hand_is_as_the_node_looks() -> None:
    program = make_probe("exec:/bin/false", allowed={"allow_exec"})
    by_hand = hints(Verdict.failed("no"), probe=program, timeout="500ms")[-1]
    assert " svcnode probe exec:/bin/false --allow-exec --timeout 0.5s (" in by_hand


def test_a_program_that_is_named_in_a_list_is_shown_and_can_be_run_by_hand() -> None:
    program = make_probe({"url": "exec:", "argv": ["/bin/check", "two words"]}, allowed={"allow_exec"})
    scene = OperatorHarness()
    scene.node.register("db", probe=program, start_period=0)
    scene.record("db", Verdict.failed("exit 1"))
    explained = explain_service(scene.details("db"), UTC)
    assert "probe   exec:/bin/check …, every 10 s, for at most 3 s" in explained.about
    by_hand = dict(explained.sections)["How to fix it"][-1]
    assert """ svcnode probe exec: --allow-exec --option 'argv=["/bin/check", …]' (""" in by_hand


def test_names_in_a_reason_do_not_lead_astray() -> None:
    """A host called password is refused, and not a login."""
    url = "tcp://password:401"
    assert hints(Verdict.failed("connection refused: password:401"), probe=url)[0].startswith("Nothing listens")
    assert hints(Verdict.failed("it is a Monday: tcp://password:401"), probe=url)[0].startswith("Its own log")
    gone = Verdict.failed("no such file or directory: /run/password")
    assert hints(gone, probe="file:/run/password")[0].startswith("It is not there.")


@pytest.mark.parametrize(
    ("shown", "place"),
    [
        (None, "that place"),
        ("disk:/var", "disk:/var"),
        ("odd://[", "odd://["),
        ("odd://me:***@h:1/x", "h:1"),
    ],
)
def test_the_place_is_told_as_well_as_it_is_known(shown: str | None, place: str) -> None:
    """A probe of another package may call its place what it likes, or nothing."""
    scene = OperatorHarness()
    scene.node.register("db", probe="tcp://db:1", start_period=0)
    scene.record("db", Verdict.failed("connection refused"))
    explained = explain_service(scene.details("db") | {"probe": shown}, UTC)
    assert dict(explained.sections)["How to fix it"][0].startswith(f"Nothing listens at {place}. ")
