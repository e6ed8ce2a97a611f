"""The command `patchline monitor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import Json, emit, without_needless_negatives
from patchline.flows.progress.progress_display import shown
from patchline.pipeline.data.config import TableColumns
from patchline.pipeline.terminal_words import counted, few_names, short_path

if TYPE_CHECKING:
    from patchline.plugins.tools.monitor.check_journal import StreamCheck
    from patchline.plugins.tools.monitor.monitoring import Monitored

without_needless_negatives(TableColumns)
DRIFT = 3
"""Exit code if the images differ from the reference."""
_SHIFTS_SHOWN = 3


def monitor(
    model: str,
    data: str,
    /,
    *,
    false_alarms: float | None = None,
    checks: int | None = None,
    least_images: int = 20,
    as_json: Json = False,
    table: Annotated[TableColumns | None, Parameter(name="--data")] = None,
) -> int:
    """Check whether new images are still like those of the test; exits with code 3 if not.

    Parameters
    ----------
    model
        NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; NAME alone means its champion.
    data
        A folder of images, an archive, a table, SOURCE:NAME for another data source plugin, or a
        folder that `patchline serve --record` writes. Each check tests the images that are new.
    false_alarms
        Probability of any false alarm in a period of checks. Default: 0.05.
    checks
        Checks in a period, such as 365 for a year of daily checks. Default: 365.
    least_images
        Fewest independent new images of a check (near duplicates are counted once); with fewer,
        nothing is tested.
    table
        Columns of a table, where they cannot be guessed.
    """
    from patchline.plugins.tools.monitor.monitoring import MonitorChoices, check_stream

    choices = MonitorChoices(false_alarms=false_alarms, checks=checks, least_images=least_images)
    columns = table.model_dump(mode="json", exclude_defaults=True) if table else {}
    tell_closed()
    with shown():
        result = check_stream(model, data, choices, columns)
    emit(_as_json(result), *_lines(result), as_json=as_json)
    return DRIFT if result.check.drift else 0


def _as_json(result: Monitored) -> dict[str, Any]:
    check = result.check
    return {
        "drift": check.drift,
        "p_value": check.tests.p_value,
        "level": check.tests.level,
        "tests": {name: each.model_dump() for name, each in check.tests.tests.items()},
        "unknown": check.tests.unknown,
        "images": check.images,
        "independent_images": check.independent_images,
        "reference_images": check.reference_images,
        "independent_reference_images": check.independent_reference_images,
        "independence_unknown": list(check.independence_unknown),
        "class_shares": _class_shares(check),
        "page": str(check.page),
        "model": result.reference.name,
        "version": result.reference.version,
        "stream": result.stream,
        "check": check.number,
        "new": result.is_new,
        "false_alarms": check.false_alarms,
        "checks": check.checks,
        "spent": check.spent,
        "labels": [each.model_dump() for each in check.labels],
        "confidence": check.confidence.model_dump(),
        "accuracy": check.accuracy.model_dump() if check.accuracy else None,
        "accuracy_unknown": check.accuracy_unknown,
        "notes": list(check.notes),
    }


def _class_shares(check: StreamCheck) -> dict[str, Any] | None:
    shares = check.class_shares
    if shares is None:
        return None
    return {**shares.model_dump(), "explains": shares.explains, "sentence": shares.sentence()}


def _lines(result: Monitored) -> Iterator[str]:
    check, version = result.check, result.reference
    if not result.is_new:
        yield (
            f"No image is new since check {check.number} of {check.at}, whose result this is; only "
            "the accuracy is that of the labels there are now."
        )
    yield (
        f"{'Drift' if check.drift else 'No drift found'}: {counted(check.images, 'new image')} of "
        f"{result.stream} compared with the validation and test images of {version.name}, version "
        f"{version.version}"
    )
    yield from _test_lines(check)
    for shift in check.labels[:_SHIFTS_SHOWN]:
        yield (
            f"  predicted    {shift.label}: {shift.now.value:.1%} ({shift.now.low:.1%} to "
            f"{shift.now.high:.1%}), before {shift.before.value:.1%}"
        )
    sure = check.confidence
    yield f"  confidence   {sure.now.value:.1%} on average, before {sure.before.value:.1%}"
    yield from _accuracy_lines(check)
    for note in check.notes:
        yield f"  note: {note}"
    rate = f"at most {check.false_alarms:.3g} in {check.checks:,} checks"
    yield f"  check {check.number}; false alarms: {rate}, {check.spent:.2g} spent"
    if check.page.is_file():
        yield f"  page: {short_path(check.page)}"


def _test_lines(check: StreamCheck) -> Iterator[str]:
    if check.class_shares is not None:
        yield f"  classes      {check.class_shares.sentence()}"
    for name, test in check.tests.tests.items():
        sign = "<=" if test.is_significant else ">"
        yield f"  {name:<12} p = {test.p_value:.2g} {sign} {test.level:.2g}  ({test.method})"
        if test.effect is not None:
            yield f"               effect size {test.effect:.2g}: {test.effect_unit}"
    for name, why in check.tests.unknown.items():
        yield f"  {name:<12} not known: {why}"
    if check.independence():
        yield f"  independent  {check.independence()}"
    for what in check.independence_unknown:
        yield f"  not known    {what}; false alarms may be more frequent than stated"


def _accuracy_lines(check: StreamCheck) -> Iterator[str]:
    accuracy = check.accuracy
    if accuracy is None:
        yield f"  accuracy     not known: {check.accuracy_unknown or 'no image has a label'}"
        return
    now, change = accuracy.now, accuracy.change
    yield (
        f"  accuracy     {now.value:.1%} of {counted(now.n, 'labelled image')}, "
        f"{100 * change.value:+.1f} points ({100 * change.low:+.1f} to "
        f"{100 * change.high:+.1f}) since the test"
    )
    own, others = accuracy.of_own_classes, accuracy.other_classes
    if own is not None:
        names = few_names(f"{name} ({count})" for name, count in others.items())
        yield (
            f"               {own.value:.1%} of the {own.n:,} of classes that the model has; it "
            f"lacks {names}"
        )
