"""What more labels would bring, from fits on nested shares of the training images."""

from patchline.plugin_api import ToolCommand, ToolPlugin

plugin = ToolPlugin(
    summary="What more labels would bring, from fits on nested shares of the training images.",
    commands=(
        ToolCommand(
            "forecast",
            f"{__package__}.command:build",
            "Forecast the accuracy with more labels; without DATA, of the built-in digits.",
            composed=True,
            examples=("flowers", "flowers --inbox unlabelled --seconds-per-label 4"),
            common=(
                *("--name", "--seed", "--data.label", "--data.image-size", "--model.name"),
                *("--model.init", "--training.epochs"),
            ),
            group="Improve",
        ),
    ),
    python={"forecast": f"{__package__}.forecasting:forecast"},
)
