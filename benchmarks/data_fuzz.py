"""Read damaged data sets, and count what is answered neither with a manifest nor with a sentence.

    python -m benchmarks.data_fuzz [COUNT] [--seed N]

Makes COUNT (5,000) folders, zip and tar archives, compressed tars, WebDataset shards and tables of
damaged images, in damaged containers, with odd names, cells and members made to do harm. Each is
read as a run would, every third one inspected as well, in child processes whose memory and time are
limited. The same seed gives the same data; a case that fails is named by its number.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.fuzz_children import Answer, Range, answer_cases, run_cases
from benchmarks.mutated_data import DataCase, write_case

if TYPE_CHECKING:
    from pipeline.config import RunConfig

_CHUNK = 500
_INSPECTED = 3


def main() -> int:
    """Print the counts; return 1 if one that must be 0 is not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", nargs="?", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=3, metavar=("FIRST", "LAST", "FILE"), help="internal")
    given = parser.parse_args()
    if given.child:
        first, last, file = int(given.child[0]), int(given.child[1]), Path(given.child[2])
        _read_cases(Range(first, last, file), given.seed)
        return 0
    found, failures = fuzz(given.count, given.seed)
    for name, number in found.items():
        print(f"{name:<36} {number:>12,}")
    for failure in failures[:20]:
        print(f"  {failure}")
    return 1 if failures else 0


def fuzz(count: int, seed: int) -> tuple[dict[str, int], list[str]]:
    """Return the counts, and a line for each case that was handled wrongly."""
    arguments = [str(count), "--seed", str(seed)]
    found, counts, failures = run_cases("benchmarks.data_fuzz", arguments, count, _CHUNK)
    answers = {"read": counts["read"], "refused with a reason": counts["refused"]}
    return {"cases": count, **answers, **found}, failures


def _read_cases(cases: Range, seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=cases.file.parent) as name:
        folder = Path(name)
        last: list[Path] = []

        def make(number: int) -> DataCase:
            if last:
                shutil.rmtree(last.pop())
            last.append(folder / str(number))
            return write_case(number, seed, last[0])

        for number in range(-5, 0):  # imports what reading needs before anything is counted
            _answer(write_case(-number, 0, folder / f"first{number}"), number)
        answer_cases(cases, make, _answer, writable=folder)


def _answer(case: DataCase, number: int) -> Answer:
    from pipeline.config import RunConfig
    from pipeline.data.ingestion_notes import notes_on_files
    from pipeline.data.manifests import manifest as manifests
    from pipeline.data.manifests.source_listing import listing_of
    from pipeline.errors import DataError

    work = case.path.parent / ".patchline"
    try:
        # the folders in the class folders have the same names, which is a question otherwise
        label = "top" if case.kind == "folder" else "auto"
        config = RunConfig.model_validate({"data": {"path": str(case.path), "label": label}})
        listing = listing_of(config, work)
        manifest = manifests.scan(listing)
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
    from pipeline.inspection.findings_table import earlier_rows, write_table
    from pipeline.inspection.inspecting import inspect_data
    from pipeline.inspection.page import write_page
    from pipeline.inspection.terminal_report import terminal_report

    found = inspect_data(config, work)
    found.result.model_dump_json()
    list(terminal_report(found.result))
    write_page(found, work / "index.html")
    write_table(found.result, found.manifest, work / "findings.csv")
    earlier_rows(work / "findings.csv")


if __name__ == "__main__":
    sys.exit(main())
