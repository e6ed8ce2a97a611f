"""Train on CIFAR-10 for a limited time, and say what the rest of the flow costs around it.

    python -m benchmarks.cifar10 FOLDER [TIME_LIMIT] [FLAGS...]

FOLDER holds train/ and test/ with one folder of images for each class.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measured_runs import machine, measured_run


def main() -> None:
    """Print accuracy, images/s, and where the seconds went."""
    data = Path(sys.argv[1]).resolve()
    limit, *flags = sys.argv[2:] or ["5m"]
    summary = measured_run(str(data), "--training.time-limit", limit, *flags)
    accuracy, training = summary["metrics"]["test/accuracy"], summary["training"]
    stages = summary["seconds"]
    around = summary["wall_seconds"] - training["seconds"]
    print(machine())
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
    print(
        f"of these: start of the training process {start_of_training:.1f} s; start-up, Prefect and "
        f"MLflow outside the stages {outside:.1f} s"
    )


if __name__ == "__main__":
    main()
