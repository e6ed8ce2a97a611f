"""Train on the built-in digits with several seeds, with the default settings and a preset in turn.

    python -m benchmarks.digits [SEEDS] [--preset quick] [--earlier PATCHLINE]

PATCHLINE is the command of another environment, with an earlier version; its defaults train too.
Prints accuracy and seconds for each seed, and the means. The seeds share one split, so they show
the variation of the training, not of the test images.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measured_runs import PATCHLINE, machine, measured_run


class Side(NamedTuple):
    """One way to train the digits."""

    flags: tuple[str, ...] = ()
    patchline: Path = PATCHLINE


def sides(preset: str | None, earlier: Path | None) -> dict[str, Side]:
    """Return the sides by their names."""
    found = {"defaults": Side()}
    if preset:
        found[preset] = Side(("--preset", preset))
    if earlier:
        found["earlier defaults"] = Side(patchline=earlier)
    return found


def runs(seeds: int, compared: dict[str, Side]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run every side with every seed, in turn; print a line and yield the summary of each."""
    folders = {side: Path(tempfile.mkdtemp(prefix="patchline-digits-")) for side in compared}
    for seed in range(seeds):
        for side, (flags, patchline) in compared.items():
            summary = measured_run(
                "--seed", str(seed), *flags, folder=folders[side], patchline=patchline
            )
            accuracy, training = summary["metrics"]["test/accuracy"], summary["training"]
            print(
                f"seed {seed}, {side}: {accuracy['value']:.2%} of {accuracy['n']}, "
                f"{summary['wall_seconds']:.0f} s in all, first step after "
                f"{summary['first_step_seconds']:.1f} s, training {training['seconds']:.1f} s at "
                f"{training['images_per_second']:.0f} images/s",
                flush=True,
            )
            yield side, summary


def main() -> None:
    """Print a line for each run, and the means of each side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seeds", type=int, nargs="?", default=5)
    parser.add_argument("--preset")
    parser.add_argument("--earlier", type=Path)
    given = parser.parse_args()
    print(machine())
    accuracies: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    for side, summary in runs(given.seeds, sides(given.preset, given.earlier)):
        accuracies.setdefault(side, []).append(summary["metrics"]["test/accuracy"]["value"])
        seconds.setdefault(side, []).append(summary["training"]["seconds"])
    for side, values in accuracies.items():
        print(
            f"{side}: mean of {given.seeds} seeds {statistics.mean(values):.2%}, training "
            f"{statistics.mean(seconds[side]):.1f} s"
        )


if __name__ == "__main__":
    main()
