"""Records of what benchmarks measured, and the pages that are made from them.

    python -m benchmarks.results

writes the tables of README and docs again from `benchmarks/results/*.json`. A page says where with
`<!-- results: NAME -->` and `<!-- end of results -->`; a test fails if pages and records differ.

A benchmark leaves one record for each kind of machine; measuring again replaces it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace.tracking import provenance

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "results"
_TABLE = re.compile(r"(<!-- results: ([a-z0-9_]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


class Value(FrozenModel):
    """One figure."""

    name: str
    """What was measured."""
    value: float
    unit: str
    n: int
    """Number of measurements, of which the value is the median, or of images."""
    low: float | None = None
    """The smallest measurement, or the lower end of the 95% interval; None for a single one."""
    high: float | None = None

    @classmethod
    def median(cls, name: str, measured: Sequence[float], unit: str) -> Self:
        """Return the median of several measurements, with the smallest and the largest."""
        value, low, high = statistics.median(measured), min(measured), max(measured)
        return cls(name=name, value=value, unit=unit, n=len(measured), low=low, high=high)

    @classmethod
    def of_metric(cls, name: str, metric: Mapping[str, Any]) -> Self:
        """Return a metric of a run in percent, with its 95% interval."""
        value, low, high = (100 * metric[each] for each in ("value", "low", "high"))
        return cls(name=name, value=value, unit="%", n=metric["n"], low=low, high=high)


class Record(FrozenModel):
    """What one command measured on one machine."""

    command: str
    """What to type for it."""
    commit: str
    """The commit of the code; with `+` if the code had changed since."""
    machine: str
    load: float
    """Processes that wanted a processor, on average over the last minute before the end."""
    date: dt.date
    values: tuple[Value, ...]


def record(name: str, *values: Value) -> None:
    """Write a record of the program for this kind of machine, and print where.

    Of a path among the arguments, the record has the last name in capitals, such as CIFAR10.

    Args:
        name: of the record; several parts of a benchmark have one each.
        values: what it measured.
    """
    hardware, (head, dirty) = provenance.hardware(), provenance.commit()
    machine = f"{hardware['processor']}, {hardware['cores']} cores, {hardware['memory_gib']} GiB"
    module = sys.modules["__main__"].__spec__
    arguments = (Path(each).name.upper() if os.sep in each else each for each in sys.argv[1:])
    kept = Record(
        command=" ".join(("python -m", module.name if module else name, *arguments)),
        commit=(head[:12] or "unknown") + "+" * dirty,
        machine=f"{machine}, torch {provenance.package_versions()['torch']}",
        load=round(os.getloadavg()[0], 1),
        date=dt.datetime.now(dt.UTC).date(),
        values=values,
    )
    kind = re.sub(r"[^a-z0-9]+", "_", machine.lower().replace("(r)", "")).strip("_")
    file = FOLDER / f"{name}.{kind}.json"
    FOLDER.mkdir(exist_ok=True)
    file.write_text(kept.model_dump_json(indent=2) + "\n", encoding="utf-8")
    print(f"recorded in {file.relative_to(ROOT)}")


def page_of_records(text: str) -> str:
    """Return a page with its tables as the records say."""
    return _TABLE.sub(lambda match: f"{match[1]}{table(match[2])}{match[3]}", text)


def table(benchmark: str) -> str:
    """Return the records of a benchmark as Markdown, a table for each machine."""
    files = sorted(FOLDER.glob(f"{benchmark}.*.json"))
    return "\n".join(line for file in files for line in _lines(file)) + "\n"


def _lines(file: Path) -> Iterator[str]:
    kept = Record.from_file(file)
    when = f"commit `{kept.commit}`, {kept.date}, load {kept.load}"
    yield f"`{kept.command}`, {kept.machine}; {when}:"
    yield ""
    yield "| what | value | range | n |"
    yield "|---|---|---|---|"
    for each in kept.values:
        ends = (each.low, each.high)
        span = " to ".join(f"{end:,.4g}" for end in ends if end is not None)
        value = f"{each.value:,.4g}{'' if each.unit == '%' else ' '}{each.unit}".rstrip()
        yield f"| {each.name} | {value} | {span} | {each.n:,} |"
    yield ""


def main() -> None:
    """Write the pages whose tables have changed."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        before = page.read_text("utf-8")
        after = page_of_records(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
