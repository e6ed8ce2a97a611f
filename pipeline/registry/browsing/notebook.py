"""What a notebook shows: progress as one output that is redrawn, and results as frozen values.

Both are plain HTML, so they need no widget library, work in every kind of notebook, and stay in the
saved file.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from patchline.pipeline.evaluation.headline import headline_of
from patchline.pipeline.evaluation.promotion_decision import verdict
from patchline.pipeline.redaction import redact_text
from patchline.pipeline.terminal_words import counted, short_path, visible

if TYPE_CHECKING:
    from patchline.pipeline.evaluation.inspection.findings import Finding
    from patchline.pipeline.evaluation.inspection.inspecting import Inspected
    from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
    from patchline.pipeline.evaluation.promotion_decision import GateResult
    from patchline.pipeline.registry.browsing.run_summary import RunSummary
    from patchline.pipeline.registry.promotion import Promotion


_INTERVAL_SECONDS = 0.2
_LINES = "font-family: monospace; font-size: 90%; line-height: 1.4; white-space: pre-wrap"
_DIM = "opacity: 0.65"
_PULSE = "<progress></progress>"
"""A bar without a value moves to and fro."""


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive else None
    return getattr(shell, "kernel", None) is not None


class NotebookLines:
    """A line for each stage and note, and below them a bar that moves as long as a stage runs."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []
        self._bar = ""
        self._bar_text = ""
        self._started = time.monotonic()
        self._drawn = 0.0
        self._output: Any = None

    def stage(self, name: str) -> None:
        """Write the stage with the seconds since the start, and let a bar move."""
        seconds = time.monotonic() - self._started
        self._lines.append((f"{seconds:5.0f} s  {visible(name)}", ""))
        self._bar, self._bar_text = _PULSE, ""
        self._draw()

    def note(self, text: str) -> None:
        """Write the text."""
        self._lines.append((f"         {visible(redact_text(text))}", _DIM))
        self._draw()

    def advance(
        self, label: str, done: int, total: int, beside: str = "", *, unit: str = ""
    ) -> None:
        """Move the bar, at most five times a second; once all is done, show that work continues."""
        after = f"; {beside}" if beside else ""
        self._bar, self._bar_text = _PULSE, ""
        if done < total:
            self._bar = f'<progress value="{done}" max="{total}"></progress>'
            self._bar_text = f"{f'{label}: {done:,} of {total:,} {unit}'.rstrip()}{after}"
        if time.monotonic() - self._drawn >= _INTERVAL_SECONDS:
            self._draw()

    def close(self) -> None:
        """Remove the bar; the lines stay."""
        self._bar = self._bar_text = ""
        if self._lines:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        self._drawn = time.monotonic()
        content = {"text/html": self._html(), "text/plain": self._text()}
        if self._output is None:
            self._output = display(content, raw=True, display_id=True)
        else:
            self._output.update(content, raw=True)

    def _html(self) -> str:
        lines = "\n".join(
            f'<span style="{style}">{html.escape(line)}</span>' for line, style in self._lines
        )
        bar = f"\n         {self._bar} {html.escape(self._bar_text)}" if self._bar else ""
        return f'<div style="{_LINES}">{lines}{bar}</div>'

    def _text(self) -> str:
        return "\n".join(line for line, _ in (*self._lines, (self._bar_text, "")) if line)


PAGE, TABLE = "inspection.html", "findings.csv"
"""Files of an inspection."""
_MOST_INLINE_BYTES = 5_000_000
"""A notebook keeps a copy of each report that it shows, so a larger one is only named."""
_FRAME = "width: 100%; height: 640px; box-sizing: border-box; border: 1px solid #8888"


@dataclass(frozen=True, repr=False)
class Report:
    """An HTML report, shown inline by a notebook."""

    path: Path
    metrics: Mapping[str, MetricEstimate] = field(default_factory=dict)
    """Metrics by name, such as `test/accuracy`; each has `value`, `low`, `high` and `n`."""

    def __repr__(self) -> str:
        """Return what it is and where its file is."""
        return f"{type(self).__name__}({short_path(self.path)})"

    def _repr_html_(self) -> str:
        """Return a frame with the report, in which no script runs."""
        return _frame_page(self.path)


@dataclass(frozen=True, repr=False)
class Evaluation(Report):
    """The report of a registered version on given data."""

    name: str = ""
    """The name of the registered model."""
    version: str = ""
    run_id: str = ""
    """ID of the MLflow run that holds the evaluation."""
    split: str = ""
    """The images that were evaluated; the metrics' names begin with it."""
    images: int = 0
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
    provenance: str = "unknown"
    """Whether all images that the version has seen are recorded: known, upstream corpus unknown, or
    unknown."""


@dataclass(frozen=True, repr=False)
class Explanation:
    """The visual guide to an image in a trained model, shown inline by a notebook."""

    path: Path
    label: str | None
    """The most probable class of the first image; None if a multi-label model gives no label."""
    probability: float | None
    """None if there is no label."""
    model: str
    """The model that is explained: NAME/VERSION, or the run."""
    true_label: str | None = None
    """None if it is not known."""
    labels: tuple[str, ...] | None = None
    """The labels that a multi-label model gives, the most probable first; None of any other
    model."""

    def __repr__(self) -> str:
        """Return the answer, and where the page is."""
        said = "no label" if self.label is None else f"{self.label} {self.probability:.2%}"
        if self.labels and len(self.labels) > 1:
            said = f"{said} and {', '.join(self.labels[1:])}"
        return f"Explanation({said}, {short_path(self.path)})"

    def _repr_html_(self) -> str:
        """Return a frame with the page; its own script may run, but not reach the notebook."""
        return _frame_page(self.path, "allow-scripts")


@dataclass(frozen=True, repr=False)
class DataReport:
    """The report on some data, shown inline by a notebook."""

    path: Path
    """The page with the pictures."""
    table: Path
    """The findings as a table, to edit and give back as `data={"exclude": …}`."""
    images: int
    classes: Mapping[str, int]
    """Number of images by class."""
    splits: Mapping[str, int]
    """Number of images by split, as a run would divide them."""
    findings: tuple[Finding, ...]
    """Findings, each with `kind`, `severity`, `count`, `files`, `action` and `summary`; errors
    first."""
    notes: tuple[str, ...]
    fingerprint: str
    """Version of the data."""
    plan: tuple[str, ...] = ()
    """What a run with the preset would train and why; empty if none is named."""

    def __repr__(self) -> str:
        """Return how many images and findings there are, and where the page is."""
        size = f"{counted(self.images, 'image')}, {counted(len(self.findings), 'finding')}"
        return f"DataReport({size}, {short_path(self.path)})"

    def _repr_html_(self) -> str:
        """Return a frame with the page, in which no script runs."""
        return _frame_page(self.path)


@dataclass(frozen=True, repr=False)
class Decision:
    """Whether a version became champion, and why."""

    name: str
    """The name of the registered model."""
    version: str
    promoted: bool
    forced: bool
    """Whether failed gates were overruled."""
    champion: str | None
    """The champion before the decision; None if there was none."""
    reason: str
    provenance: str
    """Whether all images that the version has seen are recorded: known, upstream corpus unknown, or
    unknown."""
    gates: tuple[GateResult, ...]
    """Results of the gates, each with `name`, `passed`, `value`, `threshold` and `sentence`."""
    report: Report | None
    """The comparison with the champion; None if there was none to compare with."""

    def __repr__(self) -> str:
        """Return the decision and its reason."""
        return f"Decision({self.name}/{self.version} {self._verdict}: {self.reason})"

    @property
    def _verdict(self) -> str:
        return verdict(promoted=self.promoted, forced=self.forced)

    def _repr_html_(self) -> str:
        gates = {gate.name: f"{gate.verdict}: {gate.sentence}" for gate in self.gates}
        facts = {f"{self.name}, version {self.version}": self._verdict, "Reason": self.reason}
        return _facts({**facts, **gates})


@dataclass(frozen=True, repr=False)
class Run:
    """A finished training run and the version that it registered."""

    run_id: str
    """ID of the MLflow run."""
    name: str
    """The name of the registered model and of the experiment."""
    version: str
    aliases: tuple[str, ...]
    """Aliases of the version when the run ended, such as `challenger` and `champion`."""
    metrics: Mapping[str, MetricEstimate]
    """Metrics by name, such as `test/accuracy`; each has `value`, `low`, `high` and `n`."""
    report: Report
    promotion: Decision | None
    """The decision about the champion; None if the run made none."""
    approval: str
    """The approval that was requested; empty unless `promotion.approval` is set."""
    seconds: Mapping[str, float]
    """Duration of each stage."""
    config: Path
    """The resolved settings, which give the same run again."""
    data_fingerprint: str
    example_image: Path
    """A test image, to try the model on."""
    notes: tuple[str, ...]
    """Remarks about the data, such as damaged files."""
    provenance: str
    """Whether all images that the model has seen are recorded: known, upstream corpus unknown, or
    unknown."""
    tracking_uri: str
    url: str | None
    """The run's page in the MLflow UI; None if no server shows it."""

    def __repr__(self) -> str:
        """Return the version and its test accuracy; of an encoder, its loss."""
        title, value = self._result
        return f"Run({self.name}/{self.version}, {title} {value})"

    @property
    def _result(self) -> tuple[str, str]:
        """The title and the value of the main metric."""
        if main := headline_of(self.metrics):
            estimate = main.estimate
            if estimate is None:
                return f"test {main.name}", "unknown"
            interval = f"({estimate.low:.1%} to {estimate.high:.1%}, n={estimate.n})"
            return f"test {main.name}", f"{estimate.value:.1%} {interval}"
        loss = self.metrics["test/loss"]
        return "test loss", f"{loss.value:.4g} ({loss.low:.4g} to {loss.high:.4g}, n={loss.n})"

    def _repr_html_(self) -> str:
        title, value = self._result
        facts = {
            f"{title[:1].upper()}{title[1:]}": value,
            "Registered": f"{self.name}, version {self.version} ({', '.join(self.aliases)})",
            "Duration": f"{sum(self.seconds.values()):.0f} s",
            "Report": short_path(self.report.path),
            "MLflow run": self.url or self.run_id,
        }
        if self.promotion and not self.promotion.promoted:
            facts["Not promoted"] = self.promotion.reason
        return _facts(facts)


Shown = TypeVar("Shown", Run, DataReport, Decision)


def run_of(summary: RunSummary) -> Run:
    """Return the run that a summary is about."""
    served = summary.tracking_uri.startswith("http")
    return _convert(
        Run,
        summary,
        report=Report(Path(summary.report), summary.metrics),
        promotion=decision_of(summary.promotion) if summary.promotion else None,
        config=Path(summary.config),
        example_image=Path(summary.example_image),
        provenance=summary.provenance.state,
        url=summary.page if served else None,
    )


def data_report_of(inspected: Inspected, folder: Path) -> DataReport:
    """Return what an inspection found, whose page and table are in a folder."""
    return _convert(DataReport, inspected.result, path=folder / PAGE, table=folder / TABLE)


def decision_of(promotion: Promotion) -> Decision:
    """Return the decision that a promotion came to."""
    return _convert(
        Decision,
        promotion,
        provenance=promotion.provenance.state,
        report=Report(Path(promotion.report)) if promotion.report else None,
    )


def _convert(kind: type[Shown], source: object, **others: Any) -> Shown:
    """Return what a notebook shows of a value: its fields of the same names, and others."""
    same = {
        each.name: getattr(source, each.name) for each in fields(kind) if each.name not in others
    }
    return kind(**same, **others)


def _frame_page(path: Path, allowed: str = "") -> str:
    """Return a frame with a page, or where it is if it is too large to be kept in a notebook."""
    name = html.escape(short_path(path))
    try:
        page = path.read_text(encoding="utf-8")
    except OSError:
        return f"<p>The report {name} is gone.</p>"
    if len(page) > _MOST_INLINE_BYTES:
        return f"<p>The report is too large to show here. Open {name} in a browser.</p>"
    sandbox = f'sandbox="{allowed}"' if allowed else "sandbox"
    return (
        f'<iframe {sandbox} srcdoc="{html.escape(_own_links(page))}" title="Report {name}" '
        f'style="{_FRAME}"></iframe>'
    )


def _own_links(page: str) -> str:
    """Let links to a part of the page stay in the frame; they would open the notebook in it."""
    return page.replace("<head>", '<head><base href="about:srcdoc">', 1)


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f'<tr><th style="text-align: left">{html.escape(name)}</th>'
        f'<td style="text-align: left">{html.escape(fact)}</td></tr>'
        for name, fact in facts.items()
    )
    return f"<table>{rows}</table>"
