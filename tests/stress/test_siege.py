"""A short run of siege: a good client sees no error while a node is attacked. Times are not judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stress.siege import run_load

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.wide

LOADS = (
    "400 connections pipelining without pause",
    "300 non-readers, 10 lists each",
    "4,200 silent and 20 new a second",
    "500 half-closed with a pipeline",
    "1,000 abandoned TLS handshakes and 50 new a second",
    "300 connections, 256 descriptors",
)


@pytest.mark.parametrize("name", LOADS)
def test_a_good_client_sees_no_error_while_the_node_is_attacked(tmp_path: Path, name: str) -> None:
    result = run_load(tmp_path / "node", name, scale=0.1, measure_s=0.2, settle_s=0.1)
    assert result.problem is None
    assert result.attacked.new_s
    assert result.attacked.kept_s
