"""The parser that every command has."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

EXIT_USAGE = 2


class CommandParser(argparse.ArgumentParser):
    exit_after_misuse = EXIT_USAGE  # of the command line or of the configuration

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(self.exit_after_misuse, f"{self.prog}: error: {message}\n")


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[CommandParser]
