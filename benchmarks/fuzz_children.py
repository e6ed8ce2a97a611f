"""Run numbered cases in child processes with limited memory and time, and count their answers.

A child writes one line for each case that it has answered. A case that ends its child is counted as
a crash or a hang, and the next child begins behind it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

HANG_SECONDS = 5
"""Of processor time, so that other work on the machine does not count."""
_WAITING_SECONDS = 120
_MEMORY_BYTES = 4 << 30
_STORE = "MLFLOW_TRACKING_URI"
_PROCESS_EVENTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")
_CHANGE_EVENTS = {
    "os.mkdir": (0,), "os.remove": (0,), "os.rmdir": (0,), "os.truncate": (0,), "os.chmod": (0,),
    "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,),
}  # fmt: skip
"""Which arguments of an audit event are paths that it changes."""
_SAY_SECONDS = 10.0
Counts = Counter[str]
Case = TypeVar("Case")
Answer = tuple[str, str]
"""What a case gave, and why it is wrong; empty if it is not."""


class Range(NamedTuple):
    """The cases of one child."""

    first: int
    last: int
    file: Path
    """Receives the answers."""


def run_cases(
    module: str, arguments: Sequence[str], total: int, chunk: int
) -> tuple[dict[str, int], Counts, list[str]]:
    """Return what must be 0 and the peak memory, the answers, and a line for each wrong case.

    Args:
        module: started with the arguments and `--child FIRST LAST FILE`.
        arguments: of the module.
        total: number of cases.
        chunk: number of cases in one child.
    """
    counts: Counts = Counter()
    failures: list[str] = []
    peak, first, said = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="patchline-fuzz-") as folder:
        file = Path(folder) / "answers.jsonl"
        while first < total:
            last = min(total, first + chunk)
            code = _in_child(module, arguments, Range(first, last, file))
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            for line in lines:
                counts.update({line["answer"]: 1, **line["side_effects"]})
                peak = max(peak, line["peak_kib"])
                if line["answer"] == "other" or line["side_effects"]:
                    failures.append(f"case {line['case']}: {line['why']} {line['side_effects']}")
            first += len(lines)
            if first < last:  # the child ended before its last case
                hung = -code in (signal.SIGPROF, signal.SIGALRM)
                counts["hang" if hung else "crash"] += 1
                failures.append(f"case {first}: {'hang' if hung else f'crash {code}'}")
                first += 1
            if time.monotonic() - said > _SAY_SECONDS:
                said = time.monotonic()
                print(f"{first:,} of {total:,}", file=sys.stderr, flush=True)
    return {
        "other exceptions": counts["other"],
        f"hangs over {HANG_SECONDS} s": counts["hang"],
        "crashes": counts["crash"],
        "processes started": counts["process"],
        "files written": counts["write"],
        "peak memory, MiB": peak // 1024,
    }, counts, failures  # fmt: skip


def answer_cases(
    cases: Range,
    make: Callable[[int], Case],
    answer: Callable[[Case, int], Answer],
    writable: Path | None = None,
) -> None:
    """Answer the cases of this child.

    Args:
        cases: which.
        make: returns a case; neither its time nor what it writes counts.
        answer: what is tested.
        writable: the folder that it may write to; None if it may not write at all.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    for each in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(each, signal.SIG_DFL)  # ends the process wherever it is
    side_effects: Counts = Counter()
    watching = False

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if not watching:
            return
        if event in _PROCESS_EVENTS:
            side_effects["process"] += 1
        for path in _changed(event, arguments):
            if writable is None or not _is_below(path, writable):
                side_effects["write"] += 1

    sys.addaudithook(watch)
    with cases.file.open("w", encoding="utf-8") as answers:
        for number in range(cases.first, cases.last):
            case = make(number)
            side_effects.clear()
            signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
            signal.alarm(_WAITING_SECONDS)
            watching = True
            said, why = answer(case, number)
            watching = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            line = {
                "case": number,
                "answer": said,
                "why": why,
                "side_effects": dict(side_effects),
                "peak_kib": _peak_kib(),
            }
            answers.write(json.dumps(line) + "\n")
            answers.flush()


def one_line(message: str) -> bool:
    """Return whether a message can be shown in one line of a terminal."""
    return bool(message) and message.isprintable()


def _peak_kib() -> int:
    """Return the most memory that this program has had, in KiB.

    `ru_maxrss` would also count the process that started it, from before the program was loaded.
    """
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.read_text().split("VmHWM:")[1].split()[0])


def _in_child(module: str, arguments: Sequence[str], cases: Range) -> int:
    cases.file.write_text("")
    child = ["--child", str(cases.first), str(cases.last), str(cases.file)]
    root = Path(__file__).resolve().parent.parent
    # An inspection looks for models in the store that is named, or lies where it is run.
    environment = {key: value for key, value in os.environ.items() if key != _STORE}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments, *child],
        cwd=cases.file.parent,
        env={**environment, "PYTHONPATH": str(root)},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode > 0:  # the command itself is wrong, not a case
        raise RuntimeError(done.stderr[-2000:])
    return done.returncode


def _changed(event: str, arguments: tuple[Any, ...]) -> list[Any]:
    """Return the paths that an audit event changes."""
    if event == "open":
        mode, flags = arguments[1], arguments[2]
        by_mode = isinstance(mode, str) and any(letter in mode for letter in "wax+")
        by_flags = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return [arguments[0]] if by_mode or by_flags else []
    return [arguments[place] for place in _CHANGE_EVENTS.get(event, ())]


def _is_below(path: Any, folder: Path) -> bool:
    """Return whether a path is in a folder; a file that is open already was counted before."""
    if isinstance(path, int):
        return True
    return os.path.realpath(os.fsdecode(path)).startswith(f"{os.path.realpath(folder)}{os.sep}")
