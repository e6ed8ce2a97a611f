"""How a trained model sees an image, step by step."""

from patchline.plugin_api import ToolCommand, ToolPlugin

_COMMAND = f"{__package__}.command"

plugin = ToolPlugin(
    summary="How a trained model sees an image, step by step.",
    commands=(
        ToolCommand(
            words="explain",
            function=f"{_COMMAND}:explain",
            help="Show how a trained model sees an image, step by step, in one HTML file.",
            reads_only=True,
            examples=("flowers@champion photo.jpg", "flowers@champion photo.jpg --occlusion"),
            group="Improve",
        ),
    ),
    python={"explain": f"{_COMMAND}:explain_images"},
)
