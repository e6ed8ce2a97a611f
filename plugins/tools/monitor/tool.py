"""Whether the images that arrive are still like those that a version was tested on."""

from patchline.plugin_api import ToolCommand, ToolEvent, ToolPlugin, ToolWork

DRIFT_DETECTED = "patchline.drift.detected"

plugin = ToolPlugin(
    summary="Whether the images that arrive are still like those that a version was tested on.",
    commands=(
        ToolCommand(
            "monitor",
            f"{__package__}.command:monitor",
            "Check whether new images are still like those of the test; exits with code 3 if not.",
            examples=("flowers@champion inbox", "flowers@champion traffic --checks 365"),
            group="Improve",
        ),
    ),
    work=(
        ToolWork(
            kind="monitor",
            flag="--monitor",
            help="Check new images with this model instead, as `patchline monitor` does.",
            parameters=f"{__package__}.command:scheduled_parameters",
            flow=f"{__package__}.flow:monitor_flow",
            description="compares {data} with {model}",
            formerly=("patchline.flows.monitoring.monitor_flow:monitor_flow",),
        ),
    ),
    events=(
        ToolEvent(
            name=DRIFT_DETECTED,
            when="A check found that new images have drifted from those that a version was tested "
            "on",
            resource="patchline.model.NAME",
            payload=(
                *("name", "version", "stream", "check", "images", "independent_images"),
                *("p_value", "level", "page"),
            ),
            sentence="{images} new images of {stream} have drifted from those that version "
            "{version} of {name} was tested on (check {check}, p = {p_value}).",
            is_default=True,
            flag="--on-drift",
            flag_help="Train when a check finds that the images of this model have drifted, "
            "instead of at set times, if the data of --config has new images by then.",
        ),
    ),
)
