"""Read damaged images and data sets, and count what is answered neither with data nor a reason.

    python -m benchmarks.fuzz images [COUNT] [--seed N]
    python -m benchmarks.fuzz data [COUNT] [--seed N]

`images` makes images of every format that is read, mutates COUNT of them (50,000), adds 100 of each
format that is refused, and decodes and resizes them.

`data` makes COUNT (5,000) folders, zip and tar archives, compressed tars, WebDataset shards, tables
in many encodings, workbooks and exports of labelling tools with damaged images, in damaged
containers, with odd names, cells and members made to do harm. Each is read as a run would, every
third one inspected as well.

The cases are numbered and run in child processes whose memory and time are limited. A child writes
one line for each case that it has answered. A case that ends its child is counted as a crash or a
hang, and the next child begins behind it. The same seed gives the same cases; one that fails is
named by its number.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from benchmarks.mutated_data import (
    REFUSED_EACH,
    DataCase,
    image_case,
    save_refused_kinds,
    whole_files,
    write_case,
)
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping

if TYPE_CHECKING:
    from patchline.pipeline.config import RunConfig


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
    arguments: Sequence[str], total: int, chunk: int
) -> tuple[dict[str, int], Counts, list[str]]:
    """Return what must be 0 and the peak memory, the answers, and a line for each wrong case.

    Args:
        arguments: of this command; a child gets `--child FIRST LAST FILE`, too.
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
            code = _in_child(arguments, Range(first, last, file))
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
    sys.dont_write_bytecode = True  # what Python writes about a module is nobody's answer
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
        for path in _find_changed(event, arguments):
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


def _in_child(arguments: Sequence[str], cases: Range) -> int:
    cases.file.write_text("")
    child = ["--child", str(cases.first), str(cases.last), str(cases.file)]
    root = Path(__file__).resolve().parent.parent
    # An inspection looks for models in the store that is named, or lies where it is run.
    environment = {key: value for key, value in os.environ.items() if key != _STORE}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fuzz", *arguments, *child],
        cwd=cases.file.parent,
        env={**environment, "PYTHONPATH": str(root)},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode > 0:  # the command itself is wrong, not a case
        raise RuntimeError(done.stderr[-2000:])
    return done.returncode


def _find_changed(event: str, arguments: tuple[Any, ...]) -> list[Any]:
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


_IMAGES_OF_A_CHILD = 2500


MAPPING = PixelMapping(
    tuple((kind, 0.0, 255.0) for kind in ("float", "uint16", "int32", "uint32", "int16", "int8"))
)
"""Says what the values of files mean that are not of 8 bits."""


def fuzz_images(count: int, seed: int) -> tuple[dict[str, int], list[str]]:
    """Return the counts, and a line for each case that was handled wrongly."""
    total = count + REFUSED_EACH * len(save_refused_kinds())
    arguments = ["images", str(count), "--seed", str(seed)]
    found, counts, failures = run_cases(arguments, total, _IMAGES_OF_A_CHILD)
    answers = {"decoded": counts["decoded"], "refused with a reason": counts["refused"]}
    return {"cases": total, **answers, **found}, failures


def _decode_cases(cases: Range, count: int, seed: int) -> None:
    from patchline.pipeline.data.reading.decoding import decode_image

    for whole in whole_files():  # imports every decoder before anything is counted
        decode_image(whole, 3, mapping=MAPPING)
    answer_cases(cases, lambda number: image_case(number, count, seed), _answer_image)


def _answer_image(data: bytes, number: int) -> Answer:
    from patchline.pipeline.data.reading.decoding import UndecodableImageError, decode_image
    from patchline.pipeline.data.reading.resizing import resize_image

    channels = 1 if number % 5 == 0 else 3
    try:
        pixels = decode_image(data, channels, mapping=MAPPING)
        small = resize_image(pixels, 32, 32, ("crop", "squash", "pad")[number % 3])
    except UndecodableImageError as error:
        return ("refused", "") if one_line(str(error)) else ("other", f"reason {str(error)!r}")
    except BaseException as error:  # noqa: BLE001 - what this looks for
        return "other", f"{type(error).__name__}: {error}"
    right = small.shape == (32, 32, channels)
    return ("decoded", "") if right else ("other", f"shape {small.shape}")


_DATA_OF_A_CHILD = 500
_INSPECTED = 3


def fuzz_data(count: int, seed: int) -> tuple[dict[str, int], list[str]]:
    """Return the counts, and a line for each case that was handled wrongly."""
    arguments = ["data", str(count), "--seed", str(seed)]
    found, counts, failures = run_cases(arguments, count, _DATA_OF_A_CHILD)
    answers = {"read": counts["read"], "refused with a reason": counts["refused"]}
    return {"cases": count, **answers, **found}, failures


def _read_cases(cases: Range, _: int, seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=cases.file.parent) as name:
        folder = Path(name)
        last: list[Path] = []

        def make(number: int) -> DataCase:
            if last:
                shutil.rmtree(last.pop())
            last.append(folder / str(number))
            return write_case(number, seed, last[0])

        for number in range(-5, 0):  # imports what reading needs before anything is counted
            _answer_data(write_case(-number, 0, folder / f"first{number}"), number)
        answer_cases(cases, make, _answer_data, writable=folder)


def _answer_data(case: DataCase, number: int) -> Answer:
    from patchline.pipeline.config import RunConfig
    from patchline.pipeline.data.ingestion_notes import notes_on_files
    from patchline.pipeline.data.manifests import manifest as manifests
    from patchline.pipeline.data.manifests import scanning
    from patchline.pipeline.data.manifests.source_listing import listing_of
    from patchline.pipeline.errors import DataError

    work = case.path.parent / ".patchline"
    try:
        # the folders in the class folders have the same names, which is a question otherwise
        label = "top" if case.kind == "folder" else "auto"
        settings = {"path": str(case.path), "label": label, **dict(case.settings)}
        config = RunConfig.model_validate({"data": settings})
        listing = listing_of(config, work)
        manifest = scanning.scan(listing)
        manifests.save(manifest, work / "manifest.parquet")
        manifests.fingerprint(manifest)
        notes_on_files(manifest)
        if number % _INSPECTED == 0:
            _inspect(config, work)
    except DataError as error:
        if case.whole is not None:
            return "other", f"{case.kind}: whole data is refused: {str(error)!r}"
        right = "\n" not in str(error) and (
            case.path.name in str(error) or "train-000000" in str(error)
        )
        return ("refused", "") if right else ("other", f"{case.kind}: reason {str(error)!r}")
    except BaseException as error:  # noqa: BLE001 - what this looks for
        return "other", f"{case.kind}: {type(error).__name__}: {error}"
    bad = manifest[manifest["status"] != "ok"]
    unnamed = [path for path, why in zip(bad["path"], bad["reason"], strict=True) if not why]
    if unnamed:
        return "other", f"{case.kind}: {unnamed[0]!r} has no reason"
    if case.whole not in (None, len(manifest)):
        return "other", f"{case.kind}: {len(manifest)} of {case.whole} files are named"
    return "read", ""


def _inspect(config: RunConfig, work: Path) -> None:
    """Inspect the data, and write and read again what an inspection writes."""
    from patchline.pipeline.evaluation.inspection.findings import earlier_rows, write_table
    from patchline.pipeline.evaluation.inspection.inspecting import inspect_data
    from patchline.pipeline.evaluation.inspection.inspection_report import (
        terminal_report,
        write_page,
    )

    found = inspect_data(config, work)
    found.result.model_dump_json()
    list(terminal_report(found.result))
    write_page(found, work / "index.html")
    write_table(found.result, found.manifest, work / "findings.csv")
    earlier_rows(work / "findings.csv")


def main() -> int:
    """Print the counts; return 1 if one that must be 0 is not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    images, data = commands.add_parser("images"), commands.add_parser("data")
    images.set_defaults(fuzz=fuzz_images, answer=_decode_cases)
    data.set_defaults(fuzz=fuzz_data, answer=_read_cases)
    for command, count in ((images, 50_000), (data, 5000)):
        command.add_argument("count", nargs="?", type=int, default=count)
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--child", nargs=3, metavar=("FIRST", "LAST", "FILE"), help="internal")
    given = parser.parse_args()
    if given.child:
        first, last, file = int(given.child[0]), int(given.child[1]), Path(given.child[2])
        given.answer(Range(first, last, file), given.count, given.seed)
        return 0
    found, failures = given.fuzz(given.count, given.seed)
    for name, number in found.items():
        print(f"{name:<36} {number:>12,}")
    for failure in failures[:20]:
        print(f"  {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
