"""The node's own files: the history, which follows a renamed node, and the store."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from svcnode.core.errors import ConfigError
from svcnode.core.text import join_first

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.config import HistorySettings, Settings

log = logging.getLogger("svcnode")


def history_options(settings: Settings) -> dict[str, Any]:
    """The options of `History` and of its `reconfigure`."""
    history = settings.history
    return {"path": history.path, "max_age_s": history.max_age_s, "max_bytes": history.max_bytes}


def history_moved_from(old: Settings, new: Settings) -> Path | None:
    """The old path, if both paths are defaults and differ because the node was renamed."""
    are_defaults = old.history.shared_path is not None and new.history.shared_path is not None
    return old.history.path if are_defaults and old.history.path != new.history.path else None


def check_history_move(old: Settings, new: Settings) -> None:
    if history_moved_from(old, new) is None or new.history.path is None:
        return
    with suppress(OSError):  # the history reports it
        if new.history.path.exists():
            raise ConfigError(
                f'cannot rename the node to "{new.node_name}": there is a history of a node with this name already: '
                f"{new.history.path}; "
                "to continue that history, restart the node; otherwise move the file away"
            )


def rename_text(old: Settings, new: Settings) -> str:
    if old.node_name == new.node_name:
        return ""
    moved = "" if history_moved_from(old, new) is None else f", its history moved to {new.history.path}"
    return f'renamed the node from "{old.node_name}" to "{new.node_name}"{moved}'


def open_store(path: Path) -> None:
    from svcnode.agent.store import ensure_store, is_missing

    suffix = " (new)" if is_missing(path) else ""
    log.info("no services configured; probing the node's own store: %s%s", path, suffix, extra={"event": "store"})
    ensure_store(path)


def log_history_location(history: HistorySettings) -> None:
    """Say that the history begins now, and where the history of other nodes and of earlier versions is."""
    if history.path is None or history.shared_path is None:
        return
    extra = {"event": "history_location"}
    with suppress(OSError):  # the history reports it
        if history.shared_path.exists():
            log.warning(
                "a history file of an earlier version is not used, because it does not say which node it belongs to: "
                "%s; to continue this history, set [history] path to the file; otherwise remove the file",
                history.shared_path,
                extra=extra,
            )
        if not history.path.exists():
            folders = history.path.parent.parent
            others = join_first(sorted(folder.name for folder in folders.iterdir()) if folders.exists() else (), 5)
            suffix = f"; beside it are the histories of other nodes: {others}" if others else ""
            log.info("new history file: %s%s", history.path, suffix, extra=extra)
