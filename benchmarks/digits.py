"""`patchline run` on the built-in digits with several seeds: accuracy and seconds.

python -m benchmarks.digits [SEEDS]
"""

from __future__ import annotations

import statistics
import sys

from benchmarks.measured_runs import machine, measured_run


def main() -> None:
    """Print a line a seed, and the mean."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    accuracies = []
    print(machine())
    for seed in range(seeds):
        summary = measured_run("--seed", str(seed))
        accuracy = summary["metrics"]["test/accuracy"]
        accuracies.append(accuracy["value"])
        print(
            f"seed {seed}: {accuracy['value']:.2%} of {accuracy['n']}, "
            f"{summary['wall_seconds']:.0f} s in all, first step after "
            f"{summary['first_step_seconds']:.1f} s, training {summary['training']['seconds']:.0f} "
            f"s at {summary['training']['images_per_second']:.0f} images/s",
            flush=True,
        )
    print(f"mean of {seeds} seeds: {statistics.mean(accuracies):.2%}")


if __name__ == "__main__":
    main()
