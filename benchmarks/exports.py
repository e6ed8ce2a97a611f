"""Which form of a registered model is faster on this machine, and does it answer the same?

    python -m benchmarks.exports flowers@champion
    python -m benchmarks.exports flowers@champion --data other_photographs

Run it in the folder of the model's workspace. Every form is exported into a temporary folder, and a
row is printed for each way in which it was made, whether it passed or not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measured_runs import PATCHLINE, machine

_REFUSED = 3
FORMS = ("onnx", "int8", "openvino", "torch")
_HEADER = (
    "| form | passed | same label | largest, mean difference | accuracy (package) | MB | "
    "batch 1, ms (package) | 8 | 32 |\n|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Export every form, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="Reference of a registered model.")
    parser.add_argument("--data", help="Labelled images to compare on.")
    parser.add_argument("--forms", nargs="*", default=FORMS, choices=FORMS, help="Which forms.")
    given = parser.parse_args()
    print(machine())
    first = True
    for form in given.forms:
        record = _export(given.model, form, given.data)
        if first:
            print(f"compared on {record['compared_on']}\n\n{_HEADER}")
            first = False
        for tried in record["tried"]:
            print(_row(tried))


def _export(model: str, form: str, data: str | None) -> dict[str, Any]:
    """Return what `patchline export` says; a form that is refused is an answer, too."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [str(PATCHLINE), "export", model, "--to", form, "--json"]
        command += ["--out", str(Path(scratch) / "out"), *(["--data", data] if data else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, _REFUSED):
        sys.exit(done.returncode)  # it has said why
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _row(tried: dict[str, Any]) -> str:
    agreement = tried["agreement"]
    labels = agreement["labels"]
    times = [
        f"{each['form_milliseconds']:.1f} ({each['package_milliseconds']:.1f})"
        for each in tried["latency"]
    ] or ["-"] * 3
    cells = [
        tried["name"],
        "yes" if tried["latency"] else "no",
        f"{labels['value']:.1%} of {labels['n']:,} ({labels['low']:.1%} to {labels['high']:.1%})",
        f"{_round(agreement['largest_difference'])}, {_round(agreement['mean_difference'])}",
        f"{agreement['form_accuracy']['value']:.1%} ({agreement['package_accuracy']['value']:.1%})",
        f"{tried['bytes'] / 1e6:.1f}",
        *times,
    ]
    return f"| {' | '.join(cells)} |"


def _round(difference: float | None) -> str:
    return "not a number" if difference is None else f"{difference:.2g}"


if __name__ == "__main__":
    main()
