"""What the user has set; a plan never changes it, and adapts the rest to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_DEFAULT_MODEL = "vit"
_DIMENSIONS = ("embed_dim", "depth", "num_heads", "mlp_dim")


@dataclass(frozen=True)
class UserSettings:
    """Settings by dotted key, such as `training.epochs`."""

    values: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        """Return whether a setting, or anything below it, is set."""
        return any(name == key or name.startswith(f"{key}.") for name in self.values)

    def with_planned(self, planned: Mapping[str, Any]) -> UserSettings:
        """Return the same settings with planned ones that the rest of the plan has to fit."""
        return UserSettings({**self.values, **planned})

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a setting, or the default if it is not set."""
        return self.values.get(key, default)

    @property
    def seconds(self) -> float | None:
        """The time limit, if there is one."""
        from patchline.pipeline.training.config import duration_seconds

        limit = self.get("training.time_limit")
        return duration_seconds(limit) if limit else None

    @property
    def leaves_model(self) -> bool:
        """Whether the plan may choose the dimensions of the model."""
        model = self.get("model.name", _DEFAULT_MODEL)
        return model == _DEFAULT_MODEL and "model.size" not in self

    @property
    def leaves_embedding(self) -> bool:
        """Whether the plan may choose the patch embedding, which only some models take."""
        model = self.get("model.name", _DEFAULT_MODEL)
        return model == _DEFAULT_MODEL and "model.patch_embedding" not in self

    @property
    def leaves_augmentation(self) -> bool:
        """Whether the plan may choose the augmentation; settings of one belong to its plugin."""
        return "augmentation" not in self

    @property
    def optimizer(self) -> str:
        """The optimizer to plan for; a learning rate alone is one of the default optimizer."""
        name: str = self.get("optimizer.name") or (
            "adamw" if "optimizer.learning_rate" in self else "muon"
        )
        return name

    def dimensions(self, planned: Mapping[str, int]) -> dict[str, int]:
        """Return a tier's dimensions with those that are set; the heads divide the embedding."""
        set_sizes = {key: self.get(f"model.{key}") for key in _DIMENSIONS}
        sizes = {key: set_sizes[key] or planned[key] for key in _DIMENSIONS}
        if set_sizes["embed_dim"] and not set_sizes["num_heads"]:
            heads = range(max(1, sizes["embed_dim"] // 32), 0, -1)
            sizes["num_heads"] = next(n for n in heads if sizes["embed_dim"] % n == 0)
        elif set_sizes["num_heads"] and not set_sizes["embed_dim"]:
            multiple = 4 * set_sizes["num_heads"]
            sizes["embed_dim"] = -(-sizes["embed_dim"] // multiple) * multiple
        if not set_sizes["mlp_dim"]:
            sizes["mlp_dim"] = planned["mlp_dim"] // planned["embed_dim"] * sizes["embed_dim"]
        return sizes

    def without_set(self, settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """Return nested settings without those that are set."""
        others: dict[str, Any] = {}
        for key, value in settings.items():
            name = f"{prefix}{key}"
            if isinstance(value, Mapping):
                if inner := self.without_set(value, f"{name}."):
                    others[key] = inner
            elif name not in self.values:
                others[key] = value
        return others
