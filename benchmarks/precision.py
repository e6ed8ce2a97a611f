"""Images/s in float32 and in bfloat16 for small and larger models on the built-in digits.

python -m benchmarks.precision
"""

from __future__ import annotations

from benchmarks.measured_runs import machine, measured_run

SIZES = ("micro", "mini", "ti")


def main() -> None:
    """Print a line a model size."""
    print(machine())
    for size in SIZES:
        rates = {}
        for precision in ("float32", "bfloat16"):
            summary = measured_run(
                *("--training.time-limit", "15s", "--model.size", size),
                *("--training.precision", precision),
            )
            rates[precision] = summary["training"]["images_per_second"]
            parameters = summary["training"]["parameters"]
        print(
            f"{size}, {parameters:,} parameters: float32 {rates['float32']:.0f} images/s, "
            f"bfloat16 {rates['bfloat16']:.0f} images/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
