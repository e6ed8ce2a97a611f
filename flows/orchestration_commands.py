"""The commands that keep Patchline going by itself: servers, schedules, watching, approval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

Json = Annotated[bool, Parameter(name="--json", negative="")]
Switch = Annotated[bool, Parameter(negative="")]


def register(application: App) -> None:
    """Add the commands to the application."""
    application.command(up, name="up")
    application.command(down, name="down")
    schedule = App(name="schedule", help="Run something again and again; needs `patchline up`.")
    schedule.command(create_schedule, name="create")
    schedule.command(list_schedules, name="list")
    schedule.command(pause_schedule, name="pause")
    schedule.command(resume_schedule, name="resume")
    schedule.command(remove_schedule, name="remove")
    schedule.command(run_schedule_now, name="run-now")
    application.command(schedule)
    data = App(name="data", help="Look after the data.")
    data.command(watch, name="watch")
    application.command(data)
    application.command(approve, name="approve")
    application.command(reject, name="reject")
    notify = App(name="notify", help="Be told what happened; needs `patchline up`.")
    notify.command(create_notification, name="create")
    notify.command(list_notifications, name="list")
    notify.command(remove_notification, name="remove")
    application.command(notify)


def up(
    *,
    prefect_port: int = 4200,
    mlflow_port: int = 5000,
    runs_at_once: int = 2,
    json: Json = False,
) -> None:
    """Start a Prefect server, an MLflow server and a runner for the schedules of this folder.

    Parameters
    ----------
    prefect_port
        Where Prefect's pages shall be; the next free port if it is taken.
    mlflow_port
        Where MLflow's pages shall be; the next free port if it is taken.
    runs_at_once
        How many scheduled runs may go on at the same time.
    json
        Print one JSON object.
    """
    from flows.services.up_command import print_up

    print_up(
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
        runs_at_once=runs_at_once,
        as_json=json,
    )


def down(*, now: Switch = False, json: Json = False) -> None:
    """Stop what `patchline up` started, when the runs that go on are done.

    Parameters
    ----------
    now
        Stop the runs too; each can be continued with `patchline run --resume`.
    json
        Print one JSON object.
    """
    from flows.services.up_command import print_down

    print_down(now=now, as_json=json)


def create_schedule(
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
    json: Json = False,
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
    json
        Print one JSON object.
    """
    from flows.schedules.schedule_command import print_created

    print_created(
        name,
        cron=cron,
        interval=interval,
        timezone=timezone,
        config=config,
        predict=predict,
        images=images,
        out=out,
        paused=paused,
        as_json=json,
    )


def list_schedules(*, json: Json = False) -> None:
    """List the schedules: when they run next, and whether their config file has changed since.

    Parameters
    ----------
    json
        Print one JSON object.
    """
    from flows.schedules.schedule_command import print_schedules

    print_schedules(as_json=json)


def pause_schedule(name: str, /, *, json: Json = False) -> None:
    """Let a schedule start nothing until it is resumed.

    Parameters
    ----------
    name
        The schedule.
    json
        Print one JSON object.
    """
    from flows.schedules.schedule_command import print_paused

    print_paused(name, paused=True, as_json=json)


def resume_schedule(name: str, /, *, json: Json = False) -> None:
    """Let a paused schedule go on; what it missed is not made up for.

    Parameters
    ----------
    name
        The schedule.
    json
        Print one JSON object.
    """
    from flows.schedules.schedule_command import print_paused

    print_paused(name, paused=False, as_json=json)


def remove_schedule(name: str, /, *, json: Json = False) -> None:
    """Remove a schedule; its runs and their models stay.

    Parameters
    ----------
    name
        The schedule.
    json
        Print one JSON object.
    """
    from flows.schedules.schedule_command import print_removed

    print_removed(name, as_json=json)


def run_schedule_now(name: str, /, *, json: Json = False) -> None:
    """Start a schedule's run now, beside its times.

    Parameters
    ----------
    name
        The schedule.
    json
        Print one JSON object.
    """
    from flows.schedules.schedule_command import print_run_now

    print_run_now(name, as_json=json)


def watch(
    folder: Path,
    /,
    *,
    config: Path | None = None,
    name: str | None = None,
    json: Json = False,
) -> None:
    """Train again whenever enough images of a folder are new; `schedule remove` ends it.

    Parameters
    ----------
    folder
        A folder with one subfolder of images for each class.
    config
        YAML file with the settings of the run; data.min_new_images says how much is enough.
    name
        What the watch is called; by default as the folder is.
    json
        Print one JSON object.
    """
    from flows.new_data.watch_command import print_watch

    print_watch(folder, config=config, name=name, as_json=json)


def approve(run: str, /, *, reason: str | None = None, json: Json = False) -> int:
    """Let a version become champion that waits for a person's answer.

    Parameters
    ----------
    run
        The run that made the version: its id or its name; or the version, NAME/VERSION.
    reason
        Why; it stands in the history.
    json
        Print one JSON object.
    """
    from flows.promotion.approve_command import print_answer

    return print_answer(run, approved=True, reason=reason, as_json=json)


def reject(run: str, /, *, reason: str | None = None, json: Json = False) -> int:
    """Refuse a version that waits for a person's answer.

    Parameters
    ----------
    run
        The run that made the version: its id or its name; or the version, NAME/VERSION.
    reason
        Why; it stands in the history.
    json
        Print one JSON object.
    """
    from flows.promotion.approve_command import print_answer

    return print_answer(run, approved=False, reason=reason, as_json=json)


def create_notification(
    name: str,
    /,
    *,
    webhook: Annotated[str, Parameter(env_var="PATCHLINE_WEBHOOK")],
    on: Annotated[list[str] | None, Parameter(negative="")] = None,
    json: Json = False,
) -> None:
    """Send a message to a web address whenever something happens.

    Parameters
    ----------
    name
        What the notification is called.
    webhook
        The address that gets a POST with a JSON object; it is kept as a secret. Other users of the
        machine may see a flag while the command runs, but not the variable PATCHLINE_WEBHOOK.
    on
        The event, such as run.failed; may be given several times. Without it, failures, promotions
        and refusals.
    json
        Print one JSON object.
    """
    from flows.notices.notify_command import print_created

    print_created(name, webhook=webhook, on=on, as_json=json)


def list_notifications(*, json: Json = False) -> None:
    """List the notifications.

    Parameters
    ----------
    json
        Print one JSON object.
    """
    from flows.notices.notify_command import print_notifications

    print_notifications(as_json=json)


def remove_notification(name: str, /, *, json: Json = False) -> None:
    """Remove a notification.

    Parameters
    ----------
    name
        The notification.
    json
        Print one JSON object.
    """
    from flows.notices.notify_command import print_removed

    print_removed(name, as_json=json)
