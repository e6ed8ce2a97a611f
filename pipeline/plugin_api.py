"""The plugin API: everything that a plugin may import from Patchline besides `pipeline.layers`.

A plugin is an instance of one of the five plugin classes below, registered by an entry point in the
group of its kind. Its config class derives from `PluginConfig`; its `build` creates the object that
does the work. Importing this module imports neither torch nor pandas, so a plugin that keeps its
heavy imports inside `build` costs nothing until it is used.
"""

from __future__ import annotations

from pipeline.errors import ConfigError, DataError, PluginError
from pipeline.files.folder_walk import FoundFile, visible_folders, walk_files
from pipeline.plugin_kinds.augmentations import (
    AugmentationContext,
    AugmentationPlugin,
    BatchRandom,
    BatchTransform,
)
from pipeline.plugin_kinds.data_sources import (
    DataSource,
    DataSourcePlugin,
    ImageListing,
    ListedImage,
    SourceContext,
    Split,
)
from pipeline.plugin_kinds.models import (
    NO_PATCH_EMBEDDING,
    Encoder,
    ModelContext,
    ModelPlugin,
    PatchEmbeddingContext,
    PatchEmbeddingPlugin,
    PatchTokens,
)
from pipeline.plugin_kinds.objectives import Objective, ObjectiveContext, ObjectivePlugin
from pipeline.plugin_kinds.plugin_config import API_VERSION, DataTraits, ImageSpec, PluginConfig

__all__ = [
    "API_VERSION",
    "NO_PATCH_EMBEDDING",
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
    "ImageListing",
    "ImageSpec",
    "ListedImage",
    "ModelContext",
    "ModelPlugin",
    "Objective",
    "ObjectiveContext",
    "ObjectivePlugin",
    "PatchEmbeddingContext",
    "PatchEmbeddingPlugin",
    "PatchTokens",
    "PluginConfig",
    "PluginError",
    "SourceContext",
    "Split",
    "visible_folders",
    "walk_files",
]
