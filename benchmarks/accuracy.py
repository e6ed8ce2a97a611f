"""Train on the built-in digits or on CIFAR-10, and print accuracy and seconds.

    python -m benchmarks.accuracy digits [SEEDS] [--preset quick] [--earlier PATCHLINE]
    python -m benchmarks.accuracy cifar10 FOLDER [TIME_LIMIT] [FLAGS...]

`digits` trains with several seeds, with the plain settings and a preset in turn, and records the
medians. PATCHLINE is the command of another environment, with an earlier version; its defaults
train too. The seeds share one split, so they show the variation of the training, not of the test
images.

`cifar10` trains for a limited time, and prints what the rest of the flow costs around the training.
FOLDER holds train/ and test/ with one folder of images for each class.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measured_runs import PATCHLINE, machine, measure_run
from benchmarks.results import Value, record


class Side(NamedTuple):
    """One way to train the digits."""

    flags: tuple[str, ...] = ()
    patchline: Path = PATCHLINE


def sides(preset: str | None, earlier: Path | None) -> dict[str, Side]:
    """Return the sides by their names."""
    found = {"plain": Side(("--preset", "none"))}
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
            summary = measure_run(
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


def train_digits(given: argparse.Namespace) -> None:
    """Print a line for each run, and record the medians of each side."""
    accuracies: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    for side, summary in runs(given.seeds, sides(given.preset, given.earlier)):
        accuracies.setdefault(side, []).append(summary["metrics"]["test/accuracy"]["value"])
        seconds.setdefault(side, []).append(summary["training"]["seconds"])
    shares = {side: [100 * each for each in values] for side, values in accuracies.items()}
    record(
        "accuracy_digits",
        *(Value.median(f"test accuracy, {side}", values, "%") for side, values in shares.items()),
        *(Value.median(f"training, {side}", values, "s") for side, values in seconds.items()),
    )


def train_cifar10(given: argparse.Namespace) -> None:
    """Print accuracy, images/s, and where the seconds went."""
    limit = ("--training.time-limit", given.limit)
    summary = measure_run(str(given.folder.resolve()), *limit, *given.flags)
    accuracy, training = summary["metrics"]["test/accuracy"], summary["training"]
    stages = summary["seconds"]
    around = summary["wall_seconds"] - training["seconds"]
    print(
        f"test accuracy {accuracy['value']:.2%} ({accuracy['low']:.2%} to {accuracy['high']:.2%}) "
        f"of {accuracy['n']}; {training['parameters']:,} parameters, {training['precision']}, "
        f"{training['epochs']:.2f} epochs, {training['steps']} steps"
    )
    print(f"{training['images_per_second']:.0f} images/s in training")
    print(f"first step {summary['first_step_seconds']:.1f} s after the command")
    print(f"wall {summary['wall_seconds']:.1f} s, of which training {training['seconds']:.1f} s")
    print(f"around it {around:.1f} s: " + ", ".join(f"{k} {v:.1f}" for k, v in stages.items()))
    outside = summary["wall_seconds"] - sum(stages.values())
    start_of_training = stages["train"] - training["seconds"]
    record(
        "accuracy_cifar10",
        Value.of_metric("test accuracy", accuracy),
        *(
            Value(name=name, value=value, unit=unit, n=1)
            for name, value, unit in (
                ("epochs", training["epochs"], ""),
                ("training", training["images_per_second"], "images/s"),
                ("from the command to the first step", summary["first_step_seconds"], "s"),
                ("whole command", summary["wall_seconds"], "s"),
            )
        ),
    )
    print(
        f"of these: start of the training process {start_of_training:.1f} s; start-up, Prefect and "
        f"MLflow outside the stages {outside:.1f} s"
    )


def main() -> None:
    """Train what the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    digits = commands.add_parser("digits")
    digits.add_argument("seeds", type=int, nargs="?", default=5)
    digits.add_argument("--preset")
    digits.add_argument("--earlier", type=Path)
    digits.set_defaults(train=train_digits)
    cifar10 = commands.add_parser("cifar10")
    cifar10.add_argument("folder", type=Path)
    cifar10.add_argument("limit", nargs="?", default="5m")
    cifar10.add_argument("flags", nargs=argparse.REMAINDER)
    cifar10.set_defaults(train=train_cifar10)
    given = parser.parse_args()
    print(machine(), flush=True)
    given.train(given)


if __name__ == "__main__":
    main()
