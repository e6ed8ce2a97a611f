"""Decode and resize damaged images, and count what is not answered with pixels or a reason.

    python -m benchmarks.image_fuzz [COUNT] [--seed N]

Makes images of every format that is read, mutates COUNT of them (50,000), adds 100 of each format
that is refused, and hands them to the decoder in child processes whose memory and time are limited.
The same seed gives the same files; a case that fails is named by its number.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.mutated_images import REFUSED_EACH, case, refused_kinds, whole_files

_CHUNK = 2500
_HANG_SECONDS = 5
_MEMORY_BYTES = 4 << 30
_PROCESS_EVENTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")
_SAY_SECONDS = 10.0
Counts = Counter[str]


def main() -> int:
    """Print the counts; return 1 if one that must be 0 is not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", nargs="?", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=3, metavar=("FIRST", "LAST", "FILE"), help="internal")
    given = parser.parse_args()
    if given.child:
        first, last, file = int(given.child[0]), int(given.child[1]), Path(given.child[2])
        _decode_cases(first, last, given.count, given.seed, file)
        return 0
    found, failures = fuzz(given.count, given.seed)
    for name, number in found.items():
        print(f"{name:<36} {number:>12,}")
    for failure in failures[:20]:
        print(f"  {failure}")
    return 1 if failures else 0


def fuzz(count: int, seed: int) -> tuple[dict[str, int], list[str]]:
    """Return the counts, and a line for each case that was handled wrongly."""
    total = count + REFUSED_EACH * len(refused_kinds())
    counts: Counts = Counter()
    failures: list[str] = []
    peak, first, said = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="patchline-fuzz-") as folder:
        file = Path(folder) / "answers.jsonl"
        while first < total:
            last = min(total, first + _CHUNK)
            code = _in_child(first, last, count, seed, file)
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            for line in lines:
                counts.update({line["answer"]: 1, **line["side_effects"]})
                peak = max(peak, line["peak_kib"])
                if line["answer"] == "other" or line["side_effects"]:
                    failures.append(f"case {line['case']}: {line['why']}")
            first += len(lines)
            if first < last:  # the child ended before its last case
                hung = code == -signal.SIGALRM
                counts["hang" if hung else "crash"] += 1
                failures.append(f"case {first}: {'hang' if hung else f'crash {code}'}")
                first += 1
            if time.monotonic() - said > _SAY_SECONDS:
                said = time.monotonic()
                print(f"{first:,} of {total:,}", file=sys.stderr, flush=True)
    return {
        "cases": total,
        "decoded": counts["decoded"],
        "refused with a reason": counts["refused"],
        "other exceptions": counts["other"],
        f"hangs over {_HANG_SECONDS} s": counts["hang"],
        "crashes": counts["crash"],
        "processes started": counts["process"],
        "files written": counts["write"],
        "peak memory, MiB": peak // 1024,
    }, failures


def _in_child(first: int, last: int, count: int, seed: int, file: Path) -> int:
    file.write_text("")
    command = [sys.executable, "-m", "benchmarks.image_fuzz", str(count), "--seed", str(seed)]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [*command, "--child", str(first), str(last), str(file)],
        cwd=root,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode > 0:  # the command itself is wrong, not an image
        raise RuntimeError(done.stderr[-2000:])
    return done.returncode


def _decode_cases(first: int, last: int, count: int, seed: int, file: Path) -> None:
    from pipeline.data.decoding import decode_image

    for whole in whole_files():  # imports every decoder before anything is counted
        decode_image(whole, 3)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process wherever it is
    side_effects: Counts = Counter()
    watching = False

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if not watching:
            return
        if event in _PROCESS_EVENTS:
            side_effects["process"] += 1
        elif event == "open" and _writes(arguments):
            side_effects["write"] += 1

    sys.addaudithook(watch)
    with file.open("w", encoding="utf-8") as answers:
        for number in range(first, last):
            data = case(number, count, seed)
            side_effects.clear()
            signal.alarm(_HANG_SECONDS)
            watching = True
            answer, why = _answer(data, number)
            watching = False
            signal.alarm(0)
            line = {
                "case": number,
                "answer": answer,
                "why": why,
                "side_effects": dict(side_effects),
                "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            }
            answers.write(json.dumps(line) + "\n")
            answers.flush()


def _writes(arguments: tuple[Any, ...]) -> bool:
    mode, flags = arguments[1], arguments[2]
    by_mode = isinstance(mode, str) and any(letter in mode for letter in "wax+")
    return by_mode or bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _answer(data: bytes, number: int) -> tuple[str, str]:
    from pipeline.data.decoding import UndecodableImageError, decode_image, resize_image

    channels = 1 if number % 5 == 0 else 3
    try:
        pixels = decode_image(data, channels)
        small = resize_image(pixels, 32, 32, ("crop", "squash", "pad")[number % 3])
    except UndecodableImageError as error:
        short = len(str(error).splitlines()) == 1 and str(error).isprintable()
        return ("refused", "") if short else ("other", f"reason {str(error)!r}")
    except BaseException as error:  # noqa: BLE001 - what this looks for
        return "other", f"{type(error).__name__}: {error}"
    right = small.shape == (32, 32, channels)
    return ("decoded", "") if right else ("other", f"shape {small.shape}")


if __name__ == "__main__":
    sys.exit(main())
