"""Phrases that a native reader stumbles over, and what to write instead.

    python -m tests.structure.word_rules PATH...

Code is read whole: identifiers, docstrings, comments and texts. The right-hand side says what to
write instead.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

BANNED: dict[str, str] = {
    r"\bshall\b": "should, must or will",
    r"\bgo(es)? on\b(?! (the|a|each|its|that|one|top)\b)": "continue, resume, keep running",
    r"\bwent on\b": "continued, resumed",
    r"\bgoing_on\b": "active",
    r"\bafresh\b|\banew\b": "again, from scratch",
    r"\bflatters?\b": "are optimistic",
    r"\bagain and again\b": "on a schedule, repeatedly",
    r"\bbe told\b": "receive, be notified of",
    r"\bwelcome_\w+|_welcome\b|\.welcome\(": "assign_aliases",
    r"\bblamed\b": "plugin_errors",
    r"\b_Line\b": "RunState",
    r"\bexclusive_right\b": "alias_lock",
    r"\bsecond_tries\b": "retries",
    r"\brun_words\b": "run_messages",
    r"\bforbidden_NN\b": "attn_mask",
    r"\brising_rates\b": "drop_path_rates",
    r"\bgrid_places\b": "grid_positions",
    r"\bhold_against\b|\b[Hh]old (a|the) \w+ against\b": "check, run the conformance checks",
    r"\bLook after the\b": "manage",
    r"\bbecame of\b|\bcame of\b": "the outcome of, happened to",
    r"\bchosen on\b": "used for model selection",
    r"\bhang on chance\b": "vary a lot",
    r"\bthe model said\b": "the prediction",
    r"\bwants? to know\b": "subscribed to",
    r"\bNobody (was|is|could be) asked\b": "no approval was requested",
    r"\blet it pass\b|\blets it pass\b": "pass",
    r"\bPrefect's pages\b|\bMLflow's pages\b": "the Prefect UI, the MLflow UI",
    r"\b(test|all|other|its|these|own|same) figures\b": "metrics",
    r"\bWhat comes next\b": "What's next",
    r"\bthe same weights again\b": "reproduce this run",
    r"\bmade up for\b": "caught up",
    r"\bone time and another\b|\bby and by\b|\bfrom now on\b": "plain words",
    r"\bruns_at_once\b|\bruns-at-once\b": "max_concurrent_runs",
    r"\b[Gg]ates? (that )?refus\w+|\brefus\w+ by (a|the) gates?\b": "a gate fails",
    r"\b[Aa] person (decides|has to decide)\b|\bleft to a person\b": "requires approval",
    r"\btrainings\b": "training runs; fits, of one run",
    r"\ba training(?=[.,;:)]| (that|of|with|in|for|is|was|has|on|from|to|and|or|which)\b)": (
        "a training run; a fit, of one run"
    ),
    r"\bThere are: ": "say what the list holds, and one sentence for an empty list",
    r"\b[Nn]one exists? yet\b|\bor 'none yet'": "one sentence: No models are registered yet.",
    r"\bServer away\b": "Server unavailable",
}

_SUFFIXES = (".py", ".md", ".j2", ".yaml", ".yml", ".toml")
_SKIPPED = ("tests/structure/word_rules.py", "tests/structure/test_words.py")


def stumbles(paths: Sequence[Path], root: Path) -> Iterator[str]:
    """Yield `file:line: 'phrase': instead` for each banned phrase below the paths."""
    rules = [
        (re.compile(pattern.replace(r"\b", "")), re.compile(pattern), instead)
        for pattern, instead in BANNED.items()
    ]  # the first of each pair begins with letters, which is eight times as fast to search for
    for file in _files(paths):
        name = file.relative_to(root).as_posix()
        if name in _SKIPPED:
            continue
        text = file.read_text("utf-8")
        for letters, rule, instead in rules:
            for found in rule.finditer(text) if letters.search(text) else ():
                number = text.count("\n", 0, found.start()) + 1
                yield f"{name}:{number}: '{found[0]}': write {instead}"


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_file():
            yield path
            continue
        yield from sorted(
            each
            for each in path.rglob("*")
            if each.suffix in _SUFFIXES and not _is_hidden(each.relative_to(path))
        )


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    for stumble in stumbles([Path(path).resolve() for path in sys.argv[1:]], root):
        sys.stdout.write(f"{stumble}\n")
