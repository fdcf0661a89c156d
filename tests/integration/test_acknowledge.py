"""A problem that is acknowledged at a real node, over a kill, until it has cleared."""

from __future__ import annotations

import json
import pwd
from os import geteuid
from typing import TYPE_CHECKING, Any

from tests.integration.test_notify import FAST, Receiver
from tests.support.commands import svcnode
from tests.support.processes import Agent
from tests.support.tcp_service import TcpService

if TYPE_CHECKING:
    from pathlib import Path

USER = pwd.getpwuid(geteuid()).pw_name
OPS = f"ops (user {USER})"
FLAGS = ("--listen", "127.0.0.1:0", "--drain", "0s", "--name", "validator-7")


def config(folder: Path, chat: Receiver, pager: Receiver, **services: TcpService) -> str:
    """The pager is told what nobody has acknowledged."""
    urls = [f"http://127.0.0.1:{receiver.port}/" for receiver in (chat, pager)]
    targets = f'webhook = ["{urls[0]}", {{ url = "{urls[1]}", escalate_after = "5s" }}]'
    tables = [
        f'[[services]]\nid = "{name}"\nprobe = "tcp://127.0.0.1:{one.port}"\nimpact = "critical"'
        for name, one in services.items()
    ]
    control = f'[control]\nlisten = "unix:{folder}/c.sock"\npath = "{folder}/c.db"'
    return "\n".join(['[notify]\ngroup_wait = "50ms"\nresolve_delay = "0s"', targets, FAST, control, *tables])


def told(receiver: Receiver) -> list[tuple[str, str]]:
    """What the receiver was told about services."""
    return [(one["id"], one["change"]) for document in receiver.documents for one in document["services"]]


def test_an_acknowledged_problem_is_not_escalated_also_after_a_kill_and_its_recovery_says_who_took_care_of_it(
    tmp_path: Path,
) -> None:
    with TcpService() as db, TcpService() as cache, Receiver() as chat, Receiver() as pager:
        text = config(tmp_path, chat, pager, db=db, cache=cache)

        def command(*arguments: str) -> tuple[int, str]:
            done = svcnode(*arguments, folder=tmp_path)
            return done.returncode, done.stdout

        def acknowledged(agent: Agent) -> Any:
            return agent.request("/details/db").json["acknowledged"]

        with Agent(tmp_path, *FLAGS, config=text) as agent:
            agent.wait_until(lambda: agent.health() == 200)
            assert command("ack", "db") == (1, "")
            db.stop()
            agent.wait_until(lambda: told(chat) == [("db", "worse")])
            code, output = command("ack", "db", "--by", "ops", "--reason", "disk ordered")
            assert (code, output) == (0, "acknowledged db until the problem has cleared\n")
            agent.wait_for_event("acknowledged", service="db", by=OPS, reason="disk ordered")
            agent.process.kill()
        with Agent(tmp_path, *FLAGS, config=text) as agent:
            agent.wait_until(lambda: agent.health() == 503)
            assert (acknowledged(agent)["by"], acknowledged(agent)["reason"]) == (OPS, "disk ordered")
            url = f"http://127.0.0.1:{agent.port}"
            assert "Down, acknowledged  db" in command("status", url)[1]
            [status] = [json.loads(line) for line in command("status", url, "--json")[1].splitlines()]
            by_id = {one["id"]: one["acknowledged"] for one in status["services"]}
            assert (by_id["db"]["by"], by_id["cache"], status["acknowledged"]) == (OPS, None, None)
            assert "disk ordered" in command("explain", url, "--service", "db")[1]
            cache.stop()
            agent.wait_until(lambda: bool(pager.requests))
            assert told(pager) == [("cache", "worse")]
            db.start()
            agent.wait_until(lambda: told(chat)[-1] == ("db", "recovered"))
            made = chat.documents[-1]["services"][0]["acknowledged"]
            assert (made["by"], made["reason"], made["until"]) == (OPS, "disk ordered", None)
            agent.wait_for_event("acknowledgement_ended", service="db", reason="the problem has cleared")
            assert acknowledged(agent) is None
            transitions = agent.request("/history?id=db&transitions=20").json["transitions"]["db"]
            assert {"acknowledged", "acknowledgement_ended"} <= {one["kind"] for one in transitions}
            assert command("ack", "db", "--clear") == (1, "")
            assert command("ack", "cache", "--until", "+2h")[0] == 0
            assert command("ack", "cache", "--clear", "--by", "ann") == (0, "cache is no longer acknowledged\n")
            agent.wait_for_event("acknowledgement_ended", service="cache", by=f"ann (user {USER})")
            assert agent.stop() == 0
