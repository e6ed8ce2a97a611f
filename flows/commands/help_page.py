"""What `--help` prints: a line for each thing that people set, on one screen; `--help-all` has all.

A command's own flags are on the screen, and of the settings those of `COMMON`, each with the first
clause of its help. The rest is for `--help-all`, and for `patchline settings`, which searches.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

ALL = "--help-all"
HELP = ("--help", "-h", ALL)

HEADINGS = ("Begin", "Train", "Use", "Improve", "Automate", "Extend")
"""Of the list of commands, in this order."""
COMMON = (
    *("--name", "--seed", "--data.label", "--data.label-column", "--data.task"),
    *("--data.image-size", "--data.validation-fraction", "--data.test-fraction"),
    *("--augmentation.name", "--model.name", "--model.patch-embedding.name", "--model.init"),
    *("--model.download", "--optimizer.learning-rate", "--training.time-limit"),
    *("--training.epochs", "--training.batch-size", "--training.trainable"),
    *("--training.processes", "--training.class-balance", "--promotion.automatic"),
    "--launcher.name",
)
"""Settings that people give most."""

_CLAUSE = re.compile(r"[.;:](?: |$)(?=[^`]*(?:`[^`]*`[^`]*)*$)")
_COMMA = re.compile(r",(?= )| \(")
_INDENT = "  "
_COMMANDS = 13
_SHORTER = {"INT": "N", "FLOAT": "X", "STR": "TEXT", "STR...": "TEXT..."}


@dataclass(frozen=True)
class HelpPage:
    """How cyclopts draws the help of one command, or of all of them.

    Args:
        common: the flags of settings that are on the screen; None for all.
        is_whole: whether everything is shown, as `--help-all` asks.
    """

    common: Collection[str] | None
    is_whole: bool

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print the entries of a panel."""
        width = options.max_width
        everywhere = (*HELP, "--version") if panel.format == "command" else HELP
        entries = [each for each in panel.entries if set(each.names).isdisjoint(everywhere)]
        shown = entries if self.is_whole else [each for each in entries if self._is_shown(each)]
        if not shown:
            return
        blank = "" if panel.title in HEADINGS[1:] else "\n"  # one screen for all commands
        _print(console, f"{blank}{panel.title}:")
        labels = [_label(each) for each in shown]
        column = len(_INDENT) + max(map(len, labels)) + 2
        if panel.format == "command":
            column = max(column, _COMMANDS)  # the same below each heading
        elif self.is_whole:
            column = 2 * len(_INDENT)
        for entry, label in zip(shown, labels, strict=True):
            for line in self._lines(entry, label, column, width):
                _print(console, line)
        if hidden := len(entries) - len(shown):
            _print(
                console,
                f"{_INDENT}{hidden} more with {ALL}; `patchline settings WORDS` searches them.",
            )

    def render_usage(self, console: Console, _options: ConsoleOptions, usage: Any) -> None:
        """Print how the command is typed."""
        if usage:
            _print(console, f"Usage: {_plain(usage)}\n")

    def render_description(self, console: Console, _options: ConsoleOptions, text: Any) -> None:
        """Print what the command does."""
        if text:
            _print(console, "\n".join(textwrap.wrap(_plain(text), console.width)))

    def _is_shown(self, entry: HelpEntry) -> bool:
        """Return whether an entry is the command's own, or one that people set."""
        common = entry.names if self.common is None else self.common
        return not entry.names or any("." not in each or each in common for each in entry.names)

    def _lines(self, entry: HelpEntry, label: str, column: int, width: int) -> Iterator[str]:
        text = _plain(entry.description)
        said = " ".join((text, *_facts(entry))) if self.is_whole else shorten(text, width - column)
        head = f"{_INDENT}{label}".ljust(column)
        if len(head) > column:
            yield head
            head = " " * column
        yield from textwrap.wrap(
            said, max(width, column + 20), initial_indent=head, subsequent_indent=" " * column
        ) or [head.rstrip()]


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _plain(text: Any) -> str:
    """Return what cyclopts prepared for Rich as the text that it is."""
    prepared = getattr(text, "primary_renderable", text)
    return " ".join(str(prepared or "").split())


def shorten(text: str, width: int) -> str:
    """Return a help text up to its first full stop, semicolon or colon; a long one to a comma."""
    clause = _CLAUSE.split(text, maxsplit=1)[0]
    ends = [match.start() for match in _COMMA.finditer(clause) if match.start() <= width]
    return clause[: ends[-1]] if ends and len(clause) > width else clause


def _label(entry: HelpEntry) -> str:
    """Return what is typed for an entry: `--config PATH`; without the form with `no-`."""
    if entry.positional_label:
        return entry.positional_label
    name = entry.positive_names[0] if entry.positive_names else entry.names[0]
    return f"{name} {_SHORTER.get(entry.metavar, entry.metavar)}" if entry.metavar else name


def _facts(entry: HelpEntry) -> Iterator[str]:
    """Yield the other forms, the choices and the default of an entry."""
    if others := [*entry.positive_names[1:], *entry.negative_names]:
        yield f"[also: {', '.join(others)}]"
    if entry.choices:
        yield f"[choices: {', '.join(entry.choices)}]"
    if entry.default:
        yield f"[default: {entry.default}]"
