"""`svcnode completion SHELL`: a script that completes commands, options, kinds of probes and ids in bash, zsh or fish.

The script calls this command again at each Tab, with the words of the command line in `_SVCNODE_WORDS`, so that it has
the options of this version and the ids of the configuration.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from svcnode.cli import COMMANDS, load_command
from svcnode.cli._args import CommandParser
from svcnode.cli.output import show
from svcnode.core.errors import SvcnodeError
from svcnode.core.text import has_control_chars

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

WORDS_VARIABLE = "_SVCNODE_WORDS"  # one word per line, then the line "."
NODE_TIMEOUT_S = 0.5

# Each value has its description after a tab. %q and _describe quote ids with spaces and other characters.
_BASH = r"""_svcnode() {
    local candidate current="${COMP_WORDS[COMP_CWORD]}" words IFS=$'\n'
    words="${COMP_WORDS[*]:1:COMP_CWORD}"$'\n.'
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        [[ $candidate == "$current"* ]] && COMPREPLY+=("$(printf %q "$candidate")")
    done < <(_SVCNODE_WORDS="$words" "${COMP_WORDS[0]}" completion bash 2>/dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -F _svcnode svcnode
"""
_ZSH = r"""#compdef svcnode
_svcnode() {
    local -a candidates
    local value text
    while IFS=$'\t' read -r value text; do
        candidates+=("${value//:/\\:}:$text")
    done < <(_SVCNODE_WORDS="${(pj:\n:)words[2,CURRENT]}"$'\n.' "${words[1]}" completion zsh 2>/dev/null)
    _describe svcnode candidates
}
if [[ $funcstack[1] == _svcnode ]]; then _svcnode "$@"; else compdef _svcnode svcnode; fi
"""
_FISH = r"""function __svcnode_complete
    set -l words (commandline -opc) (commandline -ct)
    _SVCNODE_WORDS=(string join \n -- $words[2..-1] . | string collect) $words[1] completion fish 2>/dev/null
end
complete -c svcnode -f -a '(__svcnode_complete)'
"""
_EPILOG = """\
how to use it:
  bash  add this line to ~/.bashrc:                  eval "$(svcnode completion bash)"
  zsh   add this line to ~/.zshrc, after compinit:   eval "$(svcnode completion zsh)"
  fish  run this once, with the command below

exit codes:
  0  the script is printed
  2  invalid arguments

examples:
  svcnode completion bash
  svcnode completion fish > ~/.config/fish/completions/svcnode.fish
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


class Candidate(NamedTuple):
    value: str
    description: str = ""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Let your shell complete svcnode's commands, options, kinds of probes and ids of services when you press Tab. "
        "This command prints the script for it."
    )
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=tuple(SCRIPTS), metavar="SHELL", help="bash, zsh or fish")


def run_command(arguments: argparse.Namespace) -> int:
    if (words := os.environ.get(WORDS_VARIABLE)) is None:
        show(SCRIPTS[arguments.shell].rstrip("\n"), sys.stdout)
        return 0
    for candidate in complete(words.split("\n")[:-1]):
        if not has_control_chars(candidate.value):
            show("\t".join(filter(None, candidate)), sys.stdout)
    return 0


def complete(words: Sequence[str]) -> list[Candidate]:
    """The words that may follow, of which the last one may be incomplete."""
    *before, current = words or [""]
    if not before:
        candidates: Iterable[Candidate] = (Candidate(command.name, command.help) for command in COMMANDS)
    elif before[0] in {command.name for command in COMMANDS}:
        parser = CommandParser(prog=f"svcnode {before[0]}")
        load_command(before[0], parser)
        candidates = _CommandLine(parser, before[1:], current).candidates()
    else:
        candidates = ()
    return [candidate for candidate in candidates if candidate.value.startswith(current)]


class _CommandLine:
    """The words of a command, and what the current word may be."""

    def __init__(self, parser: CommandParser, words: Sequence[str], current: str) -> None:
        actions = parser._actions  # argparse has no public list
        self._options = {name: action for action in actions for name in action.option_strings}
        self._arguments = [action for action in actions if not action.option_strings]
        self._words, self._current = words, current
        self._is_probe = parser.prog == "svcnode probe"  # whose URL is not that of a node

    def candidates(self) -> Iterator[Candidate]:
        option = self._options.get(self._words[-1]) if self._words else None
        if "--" in self._words:  # another command follows
            return
        if option is not None and option.nargs != 0:
            yield from self._values(option)
        elif self._current.startswith("-"):
            yield from (Candidate(name, action.help or "") for name, action in self._options.items())
        elif (argument := self._current_argument()) is not None:
            yield from self._values(argument)

    def _current_argument(self) -> argparse.Action | None:
        takes_value = {name for name, action in self._options.items() if action.nargs != 0}
        previous = ["", *self._words]
        count = sum(
            not word.startswith("-") and before not in takes_value
            for before, word in zip(previous, self._words, strict=False)
        )
        if count < len(self._arguments):
            return self._arguments[count]
        is_repeated = bool(self._arguments) and self._arguments[-1].nargs in ("*", "+")
        return self._arguments[-1] if is_repeated else None

    def _values(self, action: argparse.Action) -> Iterator[Candidate]:
        if action.choices is not None:
            yield from (Candidate(str(choice)) for choice in action.choices)
            return
        match action.metavar:
            case "ID":
                yield from (Candidate(service_id) for service_id in dict.fromkeys(self._ids()))
            case "URL" if action.dest == "probe" or self._is_probe:
                yield from _schemes()
            case "FILE" | "PATH":
                yield from _paths(self._current)
            case _:
                return

    def _ids(self) -> Iterator[str]:
        """From the configuration file, and from the running node; each of them may be missing or invalid."""
        with suppress(SvcnodeError):
            yield from _configured_ids(self._value_of("--config", "-c"))
        with suppress(SvcnodeError):
            yield from _running_ids(self._value_of("--config", "-c"), self._value_of("--socket"))

    def _value_of(self, *names: str) -> str | None:
        pairs = zip(self._words, self._words[1:], strict=False)
        return next((value for name, value in pairs if name in names), None)


def _config_file(option: str | None) -> Path | None:
    from svcnode.config import find_node_file

    name = option or os.environ.get("SVCNODE_CONFIG")
    return find_node_file(Path(name).expanduser() if name else None)


def _configured_ids(config: str | None) -> Iterator[str]:
    from svcnode.config.sources import Source

    services = Source(_config_file(config), {}, ()).data.get("services", [])
    for service in services if isinstance(services, list) else ():
        if isinstance(service, dict) and isinstance(service.get("id"), str):
            yield service["id"]


def _running_ids(config: str | None, socket: str | None) -> Iterator[str]:
    from svcnode.config import load_control
    from svcnode.control.owner import ConfiguredControlClient

    path, file = socket or os.environ.get("SVCNODE_CONTROL"), None
    if path is None:
        file = _config_file(config)
        control = load_control(file, os.environ)
        if control is None:
            return
        path = str(control.listen)
    with ConfiguredControlClient(path, file, timeout=NODE_TIMEOUT_S) as client:
        yield from (service["id"] for service in client.services())


def _schemes() -> Iterator[Candidate]:
    from svcnode.probes import KINDS

    without_host = ("disk", "exec", "file", "heartbeat", "sqlite")
    return (Candidate(f"{scheme}:/" if scheme in without_host else f"{scheme}://") for scheme in KINDS)


def _paths(prefix: str) -> Iterator[Candidate]:
    folder, _, name = prefix.rpartition("/")
    shown = f"{folder}/" if "/" in prefix else ""
    with suppress(OSError):
        for entry in sorted(os.scandir(Path(shown or ".").expanduser()), key=lambda entry: entry.name):
            if name or not entry.name.startswith("."):
                yield Candidate(f"{shown}{entry.name}{'/' if entry.is_dir() else ''}")
