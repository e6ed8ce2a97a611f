"""The plugin API: all that a plugin may import besides `patchline.pipeline.layers`.

A plugin is an instance of one of the five plugin classes below, registered by an entry point in the
group of its kind. Its config class derives from `PluginConfig`; its `build` creates the object that
does the work. Importing this module imports neither torch nor pandas, so a plugin that keeps its
heavy imports inside `build` costs nothing until it is used.
"""

from __future__ import annotations

from patchline.pipeline.errors import ConfigError, DataError, PluginError
from patchline.pipeline.files.archive_members import check_expansion
from patchline.pipeline.files.archives import open_archive, readable_archive, shard_index
from patchline.pipeline.files.data_kinds import table_parts
from patchline.pipeline.files.data_names import (
    ARCHIVE_SUFFIXES,
    IMAGE_SUFFIXES,
    TABLE_SUFFIXES,
    Split,
    split_named,
    stem_of,
    valid_name,
)
from patchline.pipeline.files.folder_walk import FoundFile, visible_folders, walk_files
from patchline.pipeline.files.ignored_files import IgnoredFiles
from patchline.pipeline.files.made_once import known_digest, made_once
from patchline.pipeline.files.table_cells import plain_cell
from patchline.pipeline.files.tar_shards import sample_key, shards_in
from patchline.pipeline.labels.folder_levels import unclear_level
from patchline.pipeline.labels.label_cells import read_label_cells
from patchline.pipeline.labels.reading_rules import ReadingRules
from patchline.pipeline.plugin_kinds.augmentations import (
    Assumptions,
    AugmentationContext,
    AugmentationPlugin,
    BatchRandom,
    BatchTransform,
)
from patchline.pipeline.plugin_kinds.data_sources import (
    DataSource,
    DataSourcePlugin,
    ImageListing,
    LeftOutFile,
    ListedImage,
    SourceContext,
)
from patchline.pipeline.plugin_kinds.models import (
    NO_PATCH_EMBEDDING,
    Encoder,
    ModelContext,
    ModelPlugin,
    PatchEmbeddingContext,
    PatchEmbeddingPlugin,
    PatchTokens,
)
from patchline.pipeline.plugin_kinds.objectives import Objective, ObjectiveContext, ObjectivePlugin
from patchline.pipeline.plugin_kinds.plugin_config import (
    API_VERSION,
    DataTraits,
    ImageSpec,
    PixelValues,
    PluginConfig,
    ValueRange,
)

__all__ = [
    "API_VERSION",
    "ARCHIVE_SUFFIXES",
    "IMAGE_SUFFIXES",
    "NO_PATCH_EMBEDDING",
    "TABLE_SUFFIXES",
    "Assumptions",
    "AugmentationContext",
    "AugmentationPlugin",
    "BatchRandom",
    "BatchTransform",
    "ConfigError",
    "DataError",
    "DataSource",
    "DataSourcePlugin",
    "DataTraits",
    "Encoder",
    "FoundFile",
    "IgnoredFiles",
    "ImageListing",
    "ImageSpec",
    "LeftOutFile",
    "ListedImage",
    "ModelContext",
    "ModelPlugin",
    "Objective",
    "ObjectiveContext",
    "ObjectivePlugin",
    "PatchEmbeddingContext",
    "PatchEmbeddingPlugin",
    "PatchTokens",
    "PixelValues",
    "PluginConfig",
    "PluginError",
    "ReadingRules",
    "SourceContext",
    "Split",
    "ValueRange",
    "check_expansion",
    "known_digest",
    "made_once",
    "open_archive",
    "plain_cell",
    "read_label_cells",
    "readable_archive",
    "sample_key",
    "shard_index",
    "shards_in",
    "split_named",
    "stem_of",
    "table_parts",
    "unclear_level",
    "valid_name",
    "visible_folders",
    "walk_files",
]
