"""A search over settings: many training runs in one study, and an honest comparison at the end."""

from patchline.plugin_api import ToolCommand, ToolEvent, ToolPlugin

SWEEP_STARTED = "patchline.sweep.started"
SWEEP_FINISHED = "patchline.sweep.finished"

plugin = ToolPlugin(
    summary="A search over settings: many training runs, and an honest comparison at the end.",
    commands=(
        ToolCommand(
            "sweep",
            f"{__package__}.command:build",
            "Search for better settings than the plan's, and register the best model.",
            composed=True,
            examples=("flowers", "flowers --sweep.space.optimizer.learning-rate 1e-4..1e-2"),
            common=(
                *("--name", "--data.label", "--data.task", "--data.image-size", "--model.name"),
                *("--model.init", "--training.time-limit", "--sweep.trials", "--sweep.space"),
                *("--sweep.time-limit", "--sweep.workers", "--sweep.seeds"),
            ),
            group="Train",
        ),
    ),
    events=(
        ToolEvent(
            name=SWEEP_STARTED,
            when="A search over settings has started and opened its MLflow run",
            resource="patchline.run.RUN_ID",
            payload=("name", "run_id", "data"),
            sentence="The search for settings of {name} has started.",
        ),
        ToolEvent(
            name=SWEEP_FINISHED,
            when="A search over settings has finished",
            resource="patchline.run.RUN_ID",
            payload=("name", "run_id", "version", "trials", "verdict"),
            sentence="The search for settings of {name} has finished after {trials} trials: "
            "{verdict}",
        ),
    ),
)
