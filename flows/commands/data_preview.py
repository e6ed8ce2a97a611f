"""The command `patchline data preview`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patchline.flows.commands.run import composed
from patchline.flows.commands.switches import Json, flattened, given_flags
from patchline.flows.progress.progress_display import shown
from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, place

_PICTURE = "augmentation_preview.png"


def build(arguments: list[str]) -> Callable[..., None]:
    """Return the command, typed for the plugins that the arguments choose."""
    chosen: Any = composed(arguments)

    def preview(
        data: str | None = None,
        /,
        *,
        picture: Path | None = None,
        images: int = 8,
        epochs: int = 8,
        config: Path | None = None,
        preset: str | None = None,
        as_json: Json = False,
        settings: Any = None,
    ) -> None:
        """Draw training images before and after augmentation, as one picture.

        Parameters
        ----------
        data
            As for `run`: a folder, or SOURCE:NAME; without it, the built-in digits.
        picture
            File to write, by default .patchline/augmentation_preview.png.
        images
            Number of images, starting with one of each class.
        epochs
            Number of epochs to show.
        config
            YAML file with settings; flags override it.
        preset
            Plan to show: quick, balanced (unless the file names another one), best, or none.
        settings
            Settings of a run: --augmentation.name standard, --training.cutmix 1.
        """
        if images < 1 or epochs < 1 or images * epochs > 1000:  # noqa: PLR2004 - one screen
            raise ConfigError(
                f"--images {images} and --epochs {epochs} must be at least 1, and their product at "
                "most 1000. Choose smaller numbers."
            )
        flags = given_flags(settings)
        request = config_files.requested(data, preset_name=preset, file=config, flags=flags)
        file = picture or WORKSPACE.resolve() / _PICTURE
        resolved = _draw(request, file, images, epochs)
        if as_json:
            chosen_augmentation = resolved.augmentation.model_dump(mode="json")
            print(json.dumps({"picture": str(file), "augmentation": chosen_augmentation}))
        else:
            print(file)

    return flattened(preview, chosen)


def _draw(request: RunConfig, file: Path, images: int, epochs: int) -> RunConfig:
    """Draw what a run with these settings would show, which is planned first unless told not to."""
    from patchline.flows.training.dry_run import dry_run
    from patchline.pipeline.training.saved_preview import save_preview
    from patchline.pipeline.workers import worker_start

    with shown(), worker_start.prepared_workers():
        resolved = dry_run(request, place())
    save_preview(resolved.config, resolved.data, file, images=images, epochs=epochs)
    return resolved.config
