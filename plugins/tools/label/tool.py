"""A page to label the images of a folder on, those that help most first."""

from patchline.plugin_api import ToolCommand, ToolPlugin

plugin = ToolPlugin(
    summary="A page to label the images of a folder on, those that help most first.",
    commands=(
        ToolCommand(
            words="label",
            function=f"{__package__}.command:label",
            help="Label the images of a folder on a local page, those that help most first, until "
            "Ctrl-C.",
            examples=("inbox --model flowers@champion", "inbox --classes daisy,rose,tulip"),
            group="Improve",
        ),
    ),
)
