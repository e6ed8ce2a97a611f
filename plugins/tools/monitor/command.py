"""The command `patchline monitor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import (
    Columns,
    Json,
    emit,
    given_flags,
    terminal_lines,
)
from patchline.flows.progress.progress_display import shown

if TYPE_CHECKING:
    from patchline.plugins.tools.monitor.check_journal import StreamCheck
    from patchline.plugins.tools.monitor.monitoring import Monitored

DRIFT = 3
"""Exit code if the images differ from the reference."""


def monitor(
    model: str,
    data: str,
    /,
    *,
    false_alarms: float | None = None,
    checks: int | None = None,
    least_images: int = 20,
    as_json: Json = False,
    table: Columns = None,
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
    columns = given_flags(table)
    tell_closed()
    with shown():
        result = check_stream(model, data, choices, columns)
    lines = terminal_lines("monitored.txt.j2", __package__, result=result)
    emit(_as_json(result), *lines, as_json=as_json)
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
