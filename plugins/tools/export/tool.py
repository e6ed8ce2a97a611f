"""Other forms of a packaged model, each compared with the package on real images."""

from patchline.plugin_api import ToolCommand, ToolPlugin

plugin = ToolPlugin(
    summary="Other forms of a packaged model, each compared with the package on real images.",
    commands=(
        ToolCommand(
            "export",
            f"{__package__}.command:export",
            "Write another form of a model if it agrees with the package; exits with code 3 if "
            "not.",
            examples=("flowers@champion --to onnx-int8", "flowers@champion --to container"),
            group="Use",
        ),
    ),
)
