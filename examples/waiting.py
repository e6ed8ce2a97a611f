"""How many images wait in a folder: the smallest tool worth having.

Try it:  patchline waiting flowers --plugin examples/waiting.py
"""

from pathlib import Path

from patchline.plugin_api import IMAGE_SUFFIXES, ToolCommand, ToolPlugin


def waiting(folder: Path, /) -> None:
    """Count the images that wait in a folder."""
    images = sum(file.suffix.lower() in IMAGE_SUFFIXES for file in folder.rglob("*"))
    print(f"{images} images wait in {folder}.")


plugin = ToolPlugin(
    summary="How many images wait in a folder",
    commands=(
        ToolCommand(
            words="waiting",
            function=f"{__name__}:waiting",
            help="Count the images that wait in a folder.",
        ),
    ),
)
