"""The command `patchline schedule`: create, list, pause, resume, remove, run-now."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flows.prefect_session import connected
from flows.schedules import schedule_plan, schedule_times
from pipeline.errors import ConfigError, OrchestrationError

if TYPE_CHECKING:
    from prefect.client.schemas.responses import DeploymentResponse

_NO_RUNNER = "Nothing runs the schedules at present: start the servers with `patchline up`."


def print_created(
    name: str,
    *,
    cron: str | None,
    interval: str | None,
    timezone: str | None,
    config: Path | None,
    predict: str | None,
    images: Path | None,
    out: Path | None,
    paused: bool,
    as_json: bool,
) -> None:
    """Create a schedule, or update the one of this name, and print when it fires next."""
    schedule_plan.checked_name(name)
    times = schedule_times.times(cron, interval, timezone)
    plan = schedule_plan.plan(config=config, predict=predict, images=images, out=out)
    with connected():
        schedule = schedule_times.prefect_schedule(times)
        from flows.schedules import deployments, schedule_view

        known = {each.id for each in deployments.deployments("schedule")}
        deployment_id = deployments.deploy(
            plan.flow,
            name,
            parameters=plan.parameters,
            schedule=schedule,
            labels={deployments.KIND: "schedule", **plan.labels},
            description=schedule_view.description(plan, times),
            paused=paused,
        )
        made = next(each for each in deployments.deployments() if each.id == deployment_id)
        view = schedule_view.view(made)
        page = deployments.page("deployment", deployment_id)
        hint = "" if deployments.runner_is_up() else _NO_RUNNER
    updated = deployment_id in known
    if as_json:
        shown = {**view.model_dump(mode="json"), "id": str(deployment_id), "updated": updated}
        print(json.dumps({**shown, "page": page}, indent=2))
    else:
        verb = "Updated" if updated else "Created"
        print(f"{verb} schedule '{name}': {view.what}, {view.when}.")
        print(f"Next   {'not before it is resumed' if view.paused else view.next_words}")
        print(f"Page   {page}")
    _note(hint)


def print_schedules(*, as_json: bool) -> None:
    """Print the schedules and watches of this folder."""
    with connected():
        from flows.schedules import schedule_view

        views = schedule_view.views()
    if as_json:
        shown = [view.model_dump(mode="json") for view in views]
        print(json.dumps({"schedules": shown}, indent=2))
        return
    if not views:
        print(
            "No schedules in this folder yet. `patchline schedule create NAME --cron "
            '"0 2 * * *" --config run.yaml` makes one.'
        )
        return
    print("\n".join(schedule_view.table(views)))


def print_paused(name: str, *, paused: bool, as_json: bool) -> None:
    """Pause or resume a schedule; one that is so already stays so."""
    with connected():
        from flows.schedules import deployments, schedule_view

        deployments.set_paused(_find(name), paused=paused)
        view = schedule_view.view(_find(name))
    if as_json:
        print(json.dumps(view.model_dump(mode="json"), indent=2))
    elif paused:
        print(f"Schedule '{name}' is paused. `patchline schedule resume {name}` lets it go on.")
    else:
        print(f"Schedule '{name}' goes on. Next: {view.next_words}.")


def print_removed(name: str, *, as_json: bool) -> None:
    """Remove a schedule."""
    with connected():
        from flows.schedules import deployments

        found = _find(name)
        deployments.remove(found.id)
    if as_json:
        print(json.dumps({"removed": name, "id": str(found.id)}, indent=2))
    else:
        print(f"Schedule '{name}' is removed; its runs and their models stay.")


def print_run_now(name: str, *, as_json: bool) -> None:
    """Start one run of a schedule and print its id and its page."""
    with connected():
        from flows.schedules import deployments

        found = _find(name)
        if going := deployments.going_on(found.id):
            raise OrchestrationError(
                f"Schedule '{name}' has a run that goes on ({going.id}, see "
                f"{deployments.page('flow-run', going.id)}). Wait for it, or cancel it there."
            )
        run_id = deployments.start(found.id)
        page = deployments.page("flow-run", run_id)
        hint = "" if deployments.runner_is_up() else _NO_RUNNER
    if as_json:
        print(json.dumps({"schedule": name, "flow_run_id": str(run_id), "page": page}, indent=2))
    else:
        print(f"Started a run of '{name}'.")
        print(f"Run    {run_id}")
        print(f"Page   {page}")
    _note(hint)


def _note(hint: str) -> None:
    if hint:
        print(hint, file=sys.stderr)


def _find(name: str) -> DeploymentResponse:
    """Return the schedule or watch of that name.

    Raises:
        ConfigError: if there is none, with the nearest one.
    """
    from flows.schedules import deployments

    found = {
        deployments.name_of(each): each
        for each in deployments.deployments()
        if each.labels[deployments.KIND] in deployments.NAMED_KINDS
    }
    if name in found:
        return found[name]
    raise _unknown(name, sorted(found))


def _unknown(name: str, names: Sequence[str]) -> ConfigError:
    if not names:
        return ConfigError(
            f"There is no schedule '{name}', and no other in this folder. `patchline schedule "
            "create` makes one."
        )
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return ConfigError(f"There is no schedule '{name}'.{hint} There are: {', '.join(names)}.")
