"""What `svcnode report` shows, and what it reads if the node does not answer."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

from svcnode.cli import main
from svcnode.cli.report import text_lines
from svcnode.history import History
from tests.support.nodes import make_node
from tests.support.ports import free_port
from tests.support.real_time import in_real_time
from tests.unit.operator.test_report import DOCUMENT

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_each_service_is_a_line_with_a_symbol_for_its_objective() -> None:
    lines = list(text_lines(DOCUMENT))
    rows = [line for line in lines if line[2:].startswith(("gone ", "db ", "up "))]
    assert [(row[0], row.split()[1 if row[0] != " " else 0]) for row in rows] == [
        (" ", "gone"),
        ("✖", "db"),
        ("✔", "up"),
    ]
    assert "2 ▶" in rows[1]
    assert "-6900 %" in rows[1]


def test_without_an_answer_the_file_is_read_with_the_names_and_objectives_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history, config = tmp_path / "history.db", tmp_path / "svcnode.toml"
    _record(history)
    config.write_text(
        f'''
        node.name = "n"
        server.listen = "127.0.0.1:{free_port()}"
        history.path = "{history}"
        defaults.slo = "99%"
        services = [{{ id = "db", name = "Ledger", status = "Up" }}]
        ''',
        encoding="utf-8",
    )
    assert main(["report", "--since", "1h", "--json", "--config", str(config)]) == 0
    document = json.loads(capsys.readouterr().out)
    (service,) = document["services"]
    assert (document["node"], service["id"], service["name"], service["slo"]) == ("n", "db", "Ledger", "99%")
    assert 0 < service["availability"] <= 1
    assert main(["report", "--week", "--csv", "--config", str(config)]) == 0
    assert [row["id"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == ["db"]
    assert main(["report", "--html", "--config", str(config)]) == 0
    assert "<style>" in capsys.readouterr().out
    assert main(["report", "--since", "1h", "--until", "2h", "--config", str(config)]) == 2


@in_real_time
async def _record(path: Path) -> None:
    node = make_node("n")
    async with History(node, path) as history:
        await history.load_state()
        node.register("db").up()
