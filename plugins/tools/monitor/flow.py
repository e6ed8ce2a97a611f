"""The monitoring flow: check the new images of a stream; a drift is told by an event."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import Field

from patchline.flows.prefect_api.failures import build_failed_state
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.plugins.tools.monitor.drift_page import effect_words
from patchline.plugins.tools.monitor.monitoring import (
    MonitorChoices,
    Monitored,
    TooFewImagesError,
    check_stream,
    tell_earlier_drifts,
)

DRIFT, NOTHING_NEW, TOO_FEW = "Drift", "Nothing new", "Too few images"
"""State names of runs that found a drift, no new image, and not enough of them."""


class MonitorSummary(FrozenModel):
    """The result of a check."""

    model: str
    version: str
    check: int
    """Number of the check of this stream."""
    drift: bool
    p_value: float
    images: int
    independent_images: int | None
    """The number of images that the tests take: of near duplicates and of the images of a group,
    one counts."""
    page: str
    """Path of the page."""


@flow(name="Monitor new images", flow_run_name="Compare {data} with {model}")
def monitor_flow(
    model: str,
    data: str,
    least_images: Annotated[int, Field(ge=1)] = 20,
    false_alarms: Annotated[float, Field(gt=0, lt=1)] | None = None,
    checks: Annotated[int, Field(ge=1)] | None = None,
    columns: dict[str, Any] | None = None,
) -> State[MonitorSummary]:
    """Compare the new images of a folder with those that a registered model was tested on.

    Args:
        model: NAME, NAME@ALIAS or NAME/VERSION of a registered model, such as flowers@champion.
        data: a folder of images, an archive, a table, or the folder of a server's recorded traffic.
        least_images: fewest independent new images of a check; with fewer, nothing is tested.
        false_alarms: probability of any false alarm in a period of checks; by default 0.05.
        checks: number of checks in a period; by default 365.
        columns: columns of a table of images, by the name of their setting, such as label_column.
    """
    choices = MonitorChoices(false_alarms=false_alarms, checks=checks, least_images=least_images)
    with live_runs.alive(WORKSPACE.resolve(), str(flow_run.id), "monitor"):
        late: list[Monitored] = []
        try:
            late = tell_earlier(model, data, columns or {})
            return _build_final_state(compare_images(model, data, choices, columns or {}), late)
        except TooFewImagesError as error:
            if late:
                return _late_drift(late[-1])
            return Completed(name=TOO_FEW, message=str(error))
        except Exception as error:  # noqa: BLE001 - raised again if it is not explained
            return build_failed_state(error)


@task(name="Tell earlier drifts", cache_policy=NO_CACHE)
def tell_earlier(model: str, data: str, columns: dict[str, Any]) -> list[Monitored]:
    """Send the events of drifts that no server has taken yet."""
    return tell_earlier_drifts(model, data, columns)


@task(name="Compare the images", cache_policy=NO_CACHE)
def compare_images(
    model: str, data: str, choices: MonitorChoices, columns: dict[str, Any]
) -> Monitored:
    """Check the images that are new since the last check."""
    return check_stream(model, data, choices, columns)


def _build_final_state(result: Monitored, late: list[Monitored]) -> State[MonitorSummary]:
    """Return the final state; a drift that had not been told before is one, whoever found it.

    Args:
        result: the result of the check.
        late: checks whose drift has been told only now.
    """
    check = result.check
    if result.is_new:
        create_markdown_artifact(
            key="drift", markdown=_markdown(result), description="The check, its tests and its page"
        )
    images = counted(check.images, "new image")
    words = f"{images} of {result.stream}, p = {check.tests.p_value:.2g}"
    summary = _summary(result)
    if result.is_new and check.drift:
        why = f" {check.class_shares.sentence()}" if check.class_shares else ""
        message = f"Drift: {words}.{why} See {check.page}"
        return Completed(name=DRIFT, message=message, data=summary)
    if late:
        return _late_drift(late[-1])
    if not result.is_new:
        message = f"No image of {result.stream} is new since check {check.number}."
        return Completed(name=NOTHING_NEW, message=message, data=summary)
    return Completed(message=f"No drift found: {words}.", data=summary)


def _late_drift(result: Monitored) -> State[MonitorSummary]:
    check = result.check
    message = (
        f"Drift: check {check.number} of {result.stream} found it on {check.at}, but it had not "
        f"been told before. See {check.page}"
    )
    return Completed(name=DRIFT, message=message, data=_summary(result))


def _summary(result: Monitored) -> MonitorSummary:
    check, version = result.check, result.reference
    return MonitorSummary(
        model=version.name,
        version=version.version,
        check=check.number,
        drift=check.drift,
        p_value=check.tests.p_value,
        images=check.images,
        independent_images=check.independent_images,
        page=str(check.page),
    )


def _markdown(result: Monitored) -> str:
    return render_markdown(
        "check.md.j2",
        __package__,
        check=result.check,
        stream=result.stream,
        version=result.reference,
        effect=effect_words,
    )
