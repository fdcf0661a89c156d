"""The findings of `svcnode check-config --check`, each with its planted fault."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from svcnode.cli import main
from tests.unit.cli.conftest import Ended
from tests.unit.cli.test_inspection import PLANTED, Site, service_that_is_down, sound_site

if TYPE_CHECKING:
    import pytest

    from tests.wording.conftest import Snapshot


def test_findings_of_check_config(snapshot: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> Ended:
        code = main(list(arguments))
        return Ended(code, *capsys.readouterr())

    texts = []
    for plant, code, _ in PLANTED:
        with sound_site() as site:
            plant(site)
            (found, *_) = (one for one in json.loads(site.check(run, "--json").out)["findings"] if one["code"] == code)
            texts.append(f"{found['level']} {code}: {found['key']} {found['place']}\n{found['what']}\n{found['fix']}\n")
            texts[-1] = without_numbers(texts[-1], site)
    with sound_site() as site:
        service_that_is_down(site)
        texts.append(without_numbers(site.check(run).out, site))
    snapshot("findings_of_check_config", "\n".join(texts))


def without_numbers(text: str, site: Site) -> str:
    """Without what differs between machines: ports, sizes, durations and folders."""
    text = text.replace(str(site.folder), "FOLDER")
    text = re.sub(r"pip install .*|make setup", "pip install …", text)
    text = re.sub(r"(?<=[0-9]:)[0-9]{4,5}|(?<= = :)[0-9]+", "PORT", text)
    return re.sub(r" +[0-9.]+(?= (ms|MiB|s)\b)", " N", text)
