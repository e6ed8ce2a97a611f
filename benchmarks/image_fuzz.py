"""Decode and resize damaged images, and count what is not answered with pixels or a reason.

    python -m benchmarks.image_fuzz [COUNT] [--seed N]

Makes images of every format that is read, mutates COUNT of them (50,000), adds 100 of each format
that is refused, and hands them to the decoder in child processes whose memory and time are limited.
The same seed gives the same files; a case that fails is named by its number.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.fuzz_children import Answer, Range, answer_cases, one_line, run_cases
from benchmarks.mutated_images import REFUSED_EACH, case, refused_kinds, whole_files
from pipeline.data.pixel_values.pixel_mapping import PixelMapping

_CHUNK = 2500


MAPPING = PixelMapping(
    tuple((kind, 0.0, 255.0) for kind in ("float", "uint16", "int32", "uint32", "int16", "int8"))
)
"""Says what the values of files mean that are not of 8 bits."""


def main() -> int:
    """Print the counts; return 1 if one that must be 0 is not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", nargs="?", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=3, metavar=("FIRST", "LAST", "FILE"), help="internal")
    given = parser.parse_args()
    if given.child:
        first, last, file = int(given.child[0]), int(given.child[1]), Path(given.child[2])
        _decode_cases(Range(first, last, file), given.count, given.seed)
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
    arguments = [str(count), "--seed", str(seed)]
    found, counts, failures = run_cases("benchmarks.image_fuzz", arguments, total, _CHUNK)
    answers = {"decoded": counts["decoded"], "refused with a reason": counts["refused"]}
    return {"cases": total, **answers, **found}, failures


def _decode_cases(cases: Range, count: int, seed: int) -> None:
    from pipeline.data.reading.decoding import decode_image

    for whole in whole_files():  # imports every decoder before anything is counted
        decode_image(whole, 3, mapping=MAPPING)
    answer_cases(cases, lambda number: case(number, count, seed), _answer)


def _answer(data: bytes, number: int) -> Answer:
    from pipeline.data.reading.decoding import UndecodableImageError, decode_image
    from pipeline.data.reading.resizing import resize_image

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


if __name__ == "__main__":
    sys.exit(main())
