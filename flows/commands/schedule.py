"""The command `patchline schedule`: create, list, pause, resume, remove, run-now."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows.commands.switches import Json, Switch
from flows.prefect_session import connected
from flows.schedules import schedule_plan, schedule_times
from pipeline.errors import ConfigError, OrchestrationError

if TYPE_CHECKING:
    from prefect.client.schemas.responses import DeploymentResponse

    from flows.schedules.schedule_plan import Plan
    from flows.schedules.schedule_times import Times

ScheduleName = Annotated[str, Parameter(help="The schedule.")]
_NO_RUNNER = "Nothing runs the schedules at present: start the servers with `patchline up`."


def create(
    name: str,
    /,
    *,
    cron: str | None = None,
    interval: str | None = None,
    timezone: str | None = None,
    config: Path | None = None,
    predict: str | None = None,
    images: Path | None = None,
    out: Path | None = None,
    paused: Switch = False,
    as_json: Json = False,
) -> None:
    """Train, or predict with the champion, on a schedule.

    Parameters
    ----------
    name
        What the schedule is called.
    cron
        When, as a cron expression of five fields: "0 2 * * *" is every night at two.
    interval
        Or how often: 90s, 20m, 2h, 1d.
    timezone
        Whose clock the cron expression means, such as Europe/Berlin; by default this machine's.
    config
        YAML file with the settings of the run; they are stored with the schedule.
    predict
        Predict instead of training: the model, such as flowers@champion.
    images
        The folder of images to predict.
    out
        The table that the predictions are written to: a file that ends in .csv or .parquet.
    paused
        Create the schedule without starting it.
    """
    schedule_plan.checked_name(name)
    times = schedule_times.times(cron, interval, timezone)
    plan = schedule_plan.plan(config=config, predict=predict, images=images, out=out)
    _create(name, times, plan, paused=paused, as_json=as_json)


def _create(name: str, times: Times, plan: Plan, *, paused: bool, as_json: bool) -> None:
    """Create a schedule, or update the one of this name, and print when it fires next."""
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


def list_schedules(*, as_json: Json = False) -> None:
    """List the schedules: when they run next, and whether their config file has changed since."""
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


def pause(name: ScheduleName, /, *, as_json: Json = False) -> None:
    """Let a schedule start nothing until it is resumed."""
    _set_paused(name, paused=True, as_json=as_json)


def resume(name: ScheduleName, /, *, as_json: Json = False) -> None:
    """Let a paused schedule go on; what it missed is not made up for."""
    _set_paused(name, paused=False, as_json=as_json)


def _set_paused(name: str, *, paused: bool, as_json: bool) -> None:
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


def remove(name: ScheduleName, /, *, as_json: Json = False) -> None:
    """Remove a schedule; its runs and their models stay."""
    with connected():
        from flows.schedules import deployments

        found = _find(name)
        deployments.remove(found.id)
    if as_json:
        print(json.dumps({"removed": name, "id": str(found.id)}, indent=2))
    else:
        print(f"Schedule '{name}' is removed; its runs and their models stay.")


def run_now(name: ScheduleName, /, *, as_json: Json = False) -> None:
    """Start a schedule's run now, beside its times."""
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
