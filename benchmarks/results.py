"""Records of what benchmarks measured, and the pages that are made from them.

    python -m benchmarks.results

writes the tables of README and docs, and the picture `docs/images/peers.svg`, again from
`benchmarks/results/*.json`. A page says where with `<!-- results: NAME -->` and
`<!-- end of results -->`; a test fails if pages and records differ. NAME is that of the records, or
`peers` for what other programs did beside Patchline.

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
from dataclasses import dataclass
from fnmatch import fnmatch
from html import escape
from pathlib import Path
from typing import Any, Self

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace.tracking import provenance

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "images" / "peers.svg"
_WIDTH, _LEFT, _BAR = 800, 270, 400
"""Of the picture: its width, where the bars begin, and the longest one, in pixels."""
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


@dataclass(frozen=True)
class Comparison:
    """The same work of Patchline and of other programs, measured in turn."""

    work: str
    record: str
    """The name of the record that has both sides."""
    ours: str
    """Pattern of the names of our values, of which the highest counts."""
    peers: Mapping[str, str]
    """The same for each of the others, by its name."""


COMPARISONS = (
    Comparison(
        "CIFAR-10 from scratch, 10 minutes",
        "accuracy_per_minute_cifar10",
        "Patchline, test*",
        {"Ultralytics": "Ultralytics*, test*"},
    ),
    Comparison(
        "Photographs of clothes from scratch, 5 minutes",
        "accuracy_per_minute_clothes",
        "Patchline, test*",
        {"Ultralytics": "Ultralytics*, test*", "timm's `train.py`": "timm*, test*"},
    ),
    Comparison(
        "A training step of a ViT",
        "training_step",
        "Patchline, *",
        {"timm in a plain loop, its fastest mode": "timm, *"},
    ),
    Comparison(
        "Batch prediction of JPEG files",
        "batch_prediction",
        "Patchline",
        {"a plain torch loop": "plain loop"},
    ),
    Comparison(
        "Serving images in JSON over HTTP",
        "serving_peers",
        "patchline serve, base64",
        {"LitServe": "LitServe", "`mlflow models serve`": "mlflow models serve"},
    ),
    Comparison(
        "Reading a folder of 60,000 files",
        "reading_files",
        "60,000*: ingestion, first time",
        {"a bare loop": "60,000*: bare loop"},
    ),
    Comparison(
        "Reading images of 224 pixels from S3, second epoch",
        "streaming_s3",
        "Patchline, second epoch",
        {"LitData": "LitData, second epoch"},
    ),
)


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


def table(name: str) -> str:
    """Return the records of a name as Markdown, a table for each machine; or that of the peers."""
    if name == "peers":
        return "\n".join(("", *_lines_of_peers(), "")) + "\n"
    files = sorted(FOLDER.glob(f"{name}.*.json"))
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


def compare() -> Iterator[tuple[str, dict[str, Value]]]:
    """Yield each work with the value of each program, Patchline first, from the newest record."""
    for each in COMPARISONS:
        files = FOLDER.glob(f"{each.record}.*.json")
        newest = max(map(Record.from_file, files), key=lambda kept: kept.date)
        found = {
            name: [value for value in newest.values if fnmatch(value.name, pattern)]
            for name, pattern in {"Patchline": each.ours, **each.peers}.items()
        }
        yield (
            each.work,
            {name: max(values, key=lambda value: value.value) for name, values in found.items()},
        )


def _lines_of_peers() -> Iterator[str]:
    yield "| work | Patchline | beside it |"
    yield "|---|---|---|"
    for work, values in compare():
        ours, *peers = ((name, _format(value)) for name, value in values.items())
        beside = "; ".join(f"{name} {value}" for name, value in peers)
        yield f"| {work} | {ours[1]} | {beside} |"


def _format(value: Value) -> str:
    """Return a value in words, with the interval if it is a share of images."""
    if value.unit != "%":
        return f"{value.value:,.0f} {value.unit}"
    return f"{value.value:.1f}% ({value.low:.1f} to {value.high:.1f}, n = {value.n:,})"


def draw_peers() -> str:
    """Return the picture of the peers as SVG, with a bar for each program."""
    lines, y = [], 8
    for work, values in compare():
        y += 22
        lines.append(f'<text x="8" y="{y}" font-weight="bold">{escape(work)}</text>')
        longest = 100 if all(each.unit == "%" for each in values.values()) else 0.0
        longest = longest or max(each.value for each in values.values())
        for name, each in values.items():
            width = round(_BAR * each.value / longest)
            shown = f"{each.value:.1f}%" if each.unit == "%" else f"{each.value:,.0f} {each.unit}"
            color = "#1565c0" if name == "Patchline" else "#9aa5b1"
            program = escape(name.replace("`", ""))
            lines += [
                f'<text x="{_LEFT - 8}" y="{y + 19}" text-anchor="end">{program}</text>',
                f'<rect x="{_LEFT}" y="{y + 7}" width="{width}" height="15" fill="{color}"/>',
                f'<text x="{_LEFT + width + 8}" y="{y + 19}">{shown}</text>',
            ]
            y += 20
        y += 8
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 8}"',
            f'    width="{_WIDTH}" height="{y + 8}" font-family="sans-serif" font-size="13">',
            "<title>Patchline beside other programs</title>",
            '<rect width="100%" height="100%" fill="white"/>',
            *lines,
            "</svg>\n",
        )
    )


def main() -> None:
    """Write the picture, and the pages whose tables have changed."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    PICTURE.write_text(draw_peers(), encoding="utf-8")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        before = page.read_text("utf-8")
        after = page_of_records(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
