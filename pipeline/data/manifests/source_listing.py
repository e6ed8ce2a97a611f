"""List the images of a data source before any is opened."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.config import GROUP_NAME
from patchline.pipeline.data.labels.answer_columns import NEAR, joined_groups
from patchline.pipeline.data.labels.reading_rules import AUTO, ReadingRules
from patchline.pipeline.data.manifests.class_labels import by_rules
from patchline.pipeline.data.manifests.label_task import with_task
from patchline.pipeline.data.reading.image_root import archive_of
from patchline.pipeline.errors import ConfigError, PluginError
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace import cache, remote_data
from patchline.pipeline.workspace.files.archives import archives_of
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.user_folders import expanded
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.plugin_api import ImageListing, SourceContext

_EXAMPLES = 2


def with_groups(listing: ImageListing, text: str) -> ImageListing:
    """Return a listing whose images are grouped by what a pattern captures in their paths.

    Images in whose path the pattern is not found are in no group, unless near duplicates of them
    are in one.

    Raises:
        ConfigError: if it is found in no path, or the source has named groups itself.
    """
    given = [image.group or "" for image in listing.images]
    if not all(group.startswith(NEAR) for group in given if group):
        raise ConfigError(
            f"data.group_pattern is '{text}', but the data names groups itself. Leave out "
            "data.group_pattern, or data.group_column if that names them."
        )
    pattern = re.compile(text)
    name = GROUP_NAME if GROUP_NAME in pattern.groupindex else 1
    matches = [pattern.search(image.path) for image in listing.images]
    names = [match[name] or "" if match else "" for match in matches]
    if not any(names):
        paths = " or ".join(image.path for image in listing.images[:_EXAMPLES])
        raise ConfigError(
            f"data.group_pattern '{text}' captures no text in any path, such as {paths}. Change "
            "it: it is searched for in the path below the data's folder, with forward slashes."
        )
    images = [
        image._replace(group=group or None)
        for image, group in zip(listing.images, joined_groups(names, given), strict=True)
    ]
    return replace(listing, images=images, notes=[*listing.notes, _note(names)])


def _note(names: Sequence[str]) -> str:
    grouped = [name for name in names if name]
    alone = len(names) - len(grouped)
    rest = f"; {counted(alone, 'image is', 'images are')} in no group" if alone else ""
    groups = counted(len(set(grouped)), "group")
    return f"data.group_pattern: {counted(len(grouped), 'image')} in {groups}{rest}"


def listing_of(config: RunConfig, workspace: Path, *, labelled: bool | None = None) -> ImageListing:
    """Return what the source of a config lists, in the groups that the config asks for.

    Args:
        config: the source.
        workspace: the folder `.patchline`.
        labelled: whether the images have labels; by default, whether the objective uses them.

    Raises:
        DataError: if the source cannot be read.
        ConfigError: if a setting does not fit what is listed.
        PluginError: if the source breaks its contract.
    """
    plugin = plugin_loader.load_data_source(config.data.source)
    options = plugin.config_class.model_validate(config.data.options)
    expanded(config.data.path or "", "data.path")  # whatever the plugin does with it
    work_dir = workspace / "sources" / config.data.source
    with storage_errors(workspace.parent):
        make_folder(work_dir)
    with plugin_loader.plugin_errors(
        "data_source", config.data.source, "failed to list its images"
    ):
        # A repeated run has its labels from the manifest, however the folders are read now.
        uses = uses_labels(config) if labelled is None else labelled
        labelled = uses and config.data.manifest is None
        rules = ReadingRules(
            **{name: getattr(config.data, name) for name in ReadingRules.model_fields}
        )
        own = rules.label == AUTO  # otherwise the paths say what the classes are
        path = config.data.path
        if path is not None:
            path = remote_data.local_path(path, whole=not plugin.reads_ranges)
        context = SourceContext(
            path,
            work_dir,
            needs_labels=labelled and own,
            rules=rules,
            task=config.data.task,
            local_files=remote_data.local_files,
        )
        listing = plugin.build(options, context).list_images()
    if not isinstance(listing, ImageListing):
        raise PluginError(
            f"The data source '{config.data.source}' returned a {type(listing).__name__}, not an "
            "ImageListing. Repair the plugin."
        )
    archive = archive_of(listing.root)
    for each in archives_of(archive) if archive else ():
        cache.mark_used(each)
    try:
        RunConfig(name=listing.name)
    except ValueError as error:
        raise PluginError(
            f"The data source '{config.data.source}' named the data {listing.name!r}, which is not "
            "a valid name. Fix the plugin."
        ) from error
    listing = by_rules(listing, rules, labelled=labelled)
    if labelled:
        listing = with_task(listing, config.data.task)
    if config.data.group_pattern is not None:
        listing = with_groups(listing, config.data.group_pattern)
    if labelled:
        return listing
    images = [image._replace(label="", labels=None) for image in listing.images]
    return replace(listing, images=images)


def uses_labels(config: RunConfig) -> bool:
    """Return whether the objective of a run uses labels."""
    return plugin_loader.load_objective(config.objective.name).uses_labels
