"""List the images of a data source before any is opened: their labels, and the task these pose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.config import GROUP_NAME
from patchline.pipeline.data.labels.answer_columns import NEAR, join_groups
from patchline.pipeline.data.labels.class_names import groups_alike, most_frequent, normalize_name
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task
from patchline.pipeline.data.labels.reading_rules import (
    AUTO,
    GROUP,
    LABEL,
    LEAF,
    SPLIT,
    TOP,
    PathTemplate,
    ReadingRules,
)
from patchline.pipeline.data.reading.image_root import archive_of
from patchline.pipeline.errors import ConfigError, DataError, PluginError
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.terminal_words import by_number, counted, few_names
from patchline.pipeline.workspace import cache, remote_data
from patchline.pipeline.workspace.files.archives import archives_of, shard_names
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.data_names import split_named
from patchline.pipeline.workspace.files.folder_walk import IgnoredFiles
from patchline.pipeline.workspace.files.paths import expand_user
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.plugin_api import ImageListing, LeftOutFile, ListedImage, SourceContext, Split


def by_rules(listing: ImageListing, rules: ReadingRules, *, labelled: bool) -> ImageListing:
    """Return a listing without the files to skip, with the labels that the rules choose.

    Args:
        listing: what a data source lists.
        rules: the settings of a run.
        labelled: whether its objective uses labels.

    Raises:
        DataError: if no path has the form that `data.label` states, or one names no split.
    """
    listing = _without_ignored(listing, IgnoredFiles(rules.ignore))
    if rules.label not in (AUTO, TOP, LEAF):
        listing = _by_template(listing, PathTemplate(rules.label))
    elif rules.label != AUTO:
        shards = shard_names(listing.root)

        def label_of(image: ListedImage) -> str:
            folders = _folders(image.path, shards)
            if rules.label == LEAF:
                return folders[-1] if folders else ""
            if image.label in folders:  # the class folder that a source has found
                return image.label
            return next((name for name in folders if not split_named(name)), "")

        images = [image._replace(label=label_of(image), labels=None) for image in listing.images]
        listing = replace(listing, images=images, empty_classes=[])
    if not labelled:
        return listing
    if rules.label != AUTO and not any(image.label for image in listing.images):
        raise DataError(
            f"data.label is {rules.label}, but no image of {listing.name} is in a folder. Use "
            "a pattern such as {label}_*.jpg if the file names tell the classes, or leave it out."
        )
    listing = _apply_spelling(
        listing, {label: normalize_name(label) for label in _labels(listing)}, _UNICODE
    )
    return _merge_classes(listing) if rules.merge_classes else listing


def _without_ignored(listing: ImageListing, ignored: IgnoredFiles) -> ImageListing:
    skipped = list(listing.ignored)
    paths = [image.path for image in listing.images]
    kept = ignored.remaining(paths, skipped.append)
    if len(kept) < len(paths):
        remaining = set(kept)
        listing = _only(listing, [path in remaining for path in paths])
    left_out = [each for each in listing.left_out if not ignored.skipped_part(each.path)]
    notes = [*listing.notes, *_note_on_ignored(skipped)]
    return replace(listing, left_out=left_out, notes=notes, ignored=skipped)


def _note_on_ignored(skipped: Sequence[str]) -> list[str]:
    if not skipped:
        return []
    folders = sum(path.endswith("/") for path in skipped)
    files = len(skipped) - folders
    parts = [
        counted(number, one) for number, one in ((folders, "folder"), (files, "file")) if number
    ]
    verb = by_number(len(skipped), "is", "are")
    return [f"{' and '.join(parts)} {verb} skipped by data.ignore: {few_names(sorted(skipped), 3)}"]


def _only(listing: ImageListing, kept: Sequence[bool]) -> ImageListing:
    """Return the listing of some of its images."""
    images = [image for image, keep in zip(listing.images, kept, strict=True) if keep]
    columns = {
        name: [value for value, keep in zip(values, kept, strict=True) if keep]
        for name, values in listing.columns.items()
    }
    return replace(listing, images=images, columns=columns)


def _folders(path: str, shards: Collection[str]) -> list[str]:
    """Return the names of the folders in a path; a shard is a file, and no folder."""
    folders = path.split("/")[:-1]
    for count in range(1, len(folders) + 1) if shards else ():
        if "/".join(folders[:count]) in shards:
            return folders[count:]
    return folders


def _by_template(listing: ImageListing, template: PathTemplate) -> ImageListing:
    """Return the listing with the label, and whatever else a template reads, of each path."""
    matches = [template.match(image.path) for image in listing.images]
    if not any(matches):
        paths = " or ".join(image.path for image in listing.images[:3]) or "none is there"
        raise DataError(
            f"data.label is '{template.text}', but no path is of that form: {paths}. Change it; it "
            "is compared with the path below the data's folder."
        )
    others = [
        LeftOutFile(image.path, _OTHER_FORM, "foreign")
        for image, parts in zip(listing.images, matches, strict=True)
        if parts is None
    ]
    listing = _only(listing, [parts is not None for parts in matches])
    read = [parts for parts in matches if parts is not None]
    images = [
        image._replace(
            label=parts[LABEL],
            labels=None,
            split=_split(image, parts, template),
            group=parts.get(GROUP) or image.group,
        )
        for image, parts in zip(listing.images, read, strict=True)
    ]
    own = [name for name in template.names if name not in (LABEL, SPLIT, GROUP)]
    return replace(
        listing,
        images=images,
        left_out=[*listing.left_out, *others],
        columns={**listing.columns, **{name: [parts[name] for parts in read] for name in own}},
        empty_classes=[],
    )


_OTHER_FORM = "its path does not have the form of data.label"


def _split(image: ListedImage, parts: dict[str, str], template: PathTemplate) -> Split | None:
    if SPLIT not in parts:
        return image.split
    split = split_named(parts[SPLIT])
    if split is None:
        raise DataError(
            f"data.label is '{template.text}', but {{{SPLIT}}} is '{parts[SPLIT]}' in "
            f"{image.path}. It has to be train, validation or test; choose another name for it in "
            "the pattern."
        )
    return split


_UNICODE = "written in two forms of Unicode"


def _labels(listing: ImageListing) -> Counter[str]:
    """Return the number of images of each class, or with each label."""
    return Counter(
        label
        for image in listing.images
        for label in ((image.label,) if image.labels is None else image.labels)
        if label
    )


def _apply_spelling(listing: ImageListing, spelling: dict[str, str], why: str) -> ImageListing:
    """Return the listing with other names for some classes, and a note on those that meet."""
    changed = {label: name for label, name in spelling.items() if label != name}
    empty = {normalize_name(name) for name in listing.empty_classes}
    if not changed and empty == set(listing.empty_classes):
        return listing
    names = Counter(spelling.values())
    united = [name for name, count in names.items() if count > 1]
    notes = []
    if united:
        verb = by_number(len(united), "is one class", "are one class each")
        quoted = few_names((f"'{name}'" for name in united), 3)
        notes.append(f"{quoted} {verb}, {why}")
    return _with_names(listing, changed, sorted(empty - set(names)), notes)


def _merge_classes(listing: ImageListing) -> ImageListing:
    """Return the listing with one class for names that look equal."""
    counts, names, notes = _labels(listing), dict[str, str](), list[str]()
    for group in groups_alike(list(counts)):
        name = most_frequent(group, counts)
        names |= dict.fromkeys(group, name)
        others = few_names((f"'{other}'" for other in group if other != name), 3)
        notes.append(f"data.merge_classes: {others} counted as '{name}'")
    empty = [name for name in listing.empty_classes if name not in counts]
    return _with_names(listing, names, empty, notes)


def _with_names(
    listing: ImageListing, names: Mapping[str, str], empty: list[str], notes: list[str]
) -> ImageListing:
    """Return the listing with other names for some labels; equal ones of a set become one."""

    def renamed(image: ListedImage) -> ListedImage:
        if image.labels is None:
            return image._replace(label=names.get(image.label, image.label))
        labels = {names.get(each, each) for each in image.labels}
        return image._replace(labels=tuple(sorted(labels)))

    images = [renamed(image) for image in listing.images]
    return replace(listing, images=images, notes=[*listing.notes, *notes], empty_classes=empty)


_NO_LABEL = "has no label"


def task_of(listing: ImageListing) -> Task:
    """Return what a model of a listing answers."""
    return MULTI_LABEL if listing.is_multi_label else SINGLE_LABEL


def is_labelled(image: ListedImage) -> bool:
    """Return whether the labels of an image are known; an empty set is known."""
    return bool(image.label) or image.labels is not None


def with_task(listing: ImageListing, task: Literal["auto"] | Task) -> ImageListing:
    """Return a listing of the kind that `data.task` asks for.

    Args:
        listing: a listing with one label for each image, or with sets of labels.
        task: `data.task`; auto leaves the listing as it is.

    Raises:
        DataError: if one label is asked for, and an image has several. One without a label is left
            out, as in any data of one label.
    """
    if task in (AUTO, task_of(listing)):
        return listing
    if task == MULTI_LABEL:
        images = [
            image._replace(label="", labels=(image.label,)) if image.label else image
            for image in listing.images
        ]
        return replace(listing, images=images)
    several = [image for image in listing.images if len(image.labels or ()) > 1]
    if several:
        first = several[0]
        labels = ", ".join(first.labels or ())
        raise DataError(
            f"data.task is {SINGLE_LABEL}, but {len(several):,} of {len(listing.images):,} images "
            f"have several labels ({first.path}: {labels}). Leave data.task out, or correct the "
            "labels."
        )
    without = [image.path for image in listing.images if not image.labels]
    listing = _only(listing, [bool(image.labels) for image in listing.images])
    images = [
        image._replace(label="".join(image.labels or ()), labels=None) for image in listing.images
    ]
    foreign = [LeftOutFile(path, _NO_LABEL, "foreign") for path in without]
    return replace(listing, images=images, left_out=[*listing.left_out, *foreign])


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
        for image, group in zip(listing.images, join_groups(names, given), strict=True)
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
    expand_user(config.data.path or "", "data.path")  # whatever the plugin does with it
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
