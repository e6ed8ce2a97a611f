"""Conformance checks of torch modules, shared by models and patch embeddings.

Shapes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from patchline.pipeline.errors import ConfigError, PackagingError
from patchline.pipeline.models.onnx_export import write_onnx
from patchline.pipeline.plugin_system.contract.checks import CheckError, Rule, require
from patchline.plugin_api import DataTraits

TOLERANCE = 1e-4
NUM_CLASSES = 5
_BFLOAT16_TOLERANCE = 0.1
_ONNX_BATCHES = (1, 2, 5)
_MOST_STEPS = 300
_LEARNED_LOSS = 0.3
_SIZES = ((8, 8), (16, 16), (28, 28), (31, 37), (32, 48), (7, 5), (1, 1))
_USUAL_SIZES = (32, 64, 96, 128, 224, 256, 384)


class ImageShape(NamedTuple):
    """Channels, height and width of an image."""

    channels: int
    height: int
    width: int

    @property
    def traits(self) -> DataTraits:
        """Traits of data with such images."""
        return DataTraits(*self, num_classes=NUM_CLASSES, mirror_symmetric=True)

    def images(self, batch: int, seed: int = 0) -> torch.Tensor:
        """Return a batch of noise in the range of normalised images: (B, C, H, W).

        As in training, the channels are last in memory.
        """
        generator = torch.Generator().manual_seed(seed)
        images_BCHW = torch.randn(batch, *self, generator=generator)
        return images_BCHW.contiguous(memory_format=torch.channels_last)


class ModuleChecks(ABC):
    """Checks shared by models and patch embeddings; a subclass builds the module."""

    @abstractmethod
    def build(self, shape: ImageShape) -> nn.Module:
        """Build the module for images of a shape, settings resolved: one tensor in, one out."""

    @abstractmethod
    def learner(self, shape: ImageShape) -> nn.Module:
        """Build a classifier from the module: `images_BCHW -> logits_BK`."""

    def rules(self) -> list[Rule]:
        """Return the checks in the order in which they run."""
        return [
            ("fits_or_refuses_every_size", self.fits_or_refuses_every_size),
            ("every_parameter_gets_a_gradient", self.every_parameter_gets_a_gradient),
            ("same_seed_same_output", self.same_seed_same_output),
            ("images_do_not_see_each_other", self.images_do_not_see_each_other),
            ("leaves_the_images_alone", self.leaves_the_images_alone),
            ("weights_survive_a_file", self.weights_survive_a_file),
            ("overfits_one_batch", self.overfits_one_batch),
            ("runs_in_bfloat16", self.runs_in_bfloat16),
            ("compiles", self.compiles),
            ("exports_to_onnx", self.exports_to_onnx),
        ]

    def refuse_settings(self) -> None:
        """Raise the plugin's own `ConfigError` if its settings fit no image."""
        self.usual_shape()

    def usual_shape(self, channels: int = 3) -> ImageShape:
        """Return the smallest usual square image size that the plugin accepts.

        Raises:
            ConfigError: if it accepts no size from 32 to 384 pixels.
        """
        refusal: ConfigError | None = None
        for side in _USUAL_SIZES:
            try:
                self.build(ImageShape(channels, side, side))
            except ConfigError as error:
                refusal = error
            else:
                return ImageShape(channels, side, side)
        raise refusal or ConfigError("It accepts no images.")

    def built(self, shape: ImageShape | None = None, seed: int = 0) -> nn.Module:
        """Build from a seed, in evaluation mode."""
        torch.manual_seed(seed)
        return self.build(shape or self.usual_shape()).eval()

    def fits_or_refuses_every_size(self) -> None:
        """An image size either works or is refused by `resolved_for` with a clear message."""
        for height, width in _SIZES:
            shape = ImageShape(3, height, width)
            try:
                with torch.no_grad():
                    output = self.built(shape)(shape.images(2))
            except ConfigError as error:
                text = str(error)
                require(
                    text.endswith((".", "?")) and " " in text,
                    f"It refuses {height}x{width} images with {text!r}. Write a sentence with the "
                    "value, the rule and the remedy.",
                )
                continue
            except CheckError:
                raise
            except Exception as error:
                raise CheckError(
                    f"For {height}x{width} images it raised {type(error).__name__}: {error}. "
                    "Raise a ConfigError for such a size in resolved_for."
                ) from error
            require(
                len(output) == 2 and bool(output.isfinite().all()),  # noqa: PLR2004 - the batch
                f"For two {height}x{width} images it returns {len(output)} outputs, or inf or nan. "
                "Raise a ConfigError for such a size in resolved_for.",
            )

    def every_parameter_gets_a_gradient(self) -> None:
        """In training every parameter gets a gradient that is not always zero.

        A head initialised to zero blocks the gradient of the rest of the model in the first step,
        so the check takes two steps.
        """
        torch.manual_seed(0)
        shape = self.usual_shape()
        module = self.build(shape).train()
        step = torch.optim.SGD(module.parameters(), lr=0.1) if _has_parameters(module) else None
        moved: set[str] = set()
        for _ in range(2):
            output = module(shape.images(8))
            (output * torch.randn_like(output)).sum().backward()
            for name, parameter in module.named_parameters():
                require(
                    parameter.grad is not None,
                    f"The parameter {name} gets no gradient. Use it in forward, remove it, or make "
                    "it a buffer if it should not be trained.",
                )
                if parameter.grad is not None and bool((parameter.grad != 0).any()):
                    moved.add(name)
            if step:
                step.step()
                step.zero_grad()
        for name, _ in module.named_parameters():
            require(name in moved, f"The gradient of {name} is zero. Check what blocks it.")

    @torch.no_grad()
    def same_seed_same_output(self) -> None:
        """The seed determines the weights, and outputs in evaluation mode are deterministic."""
        shape = self.usual_shape()
        images = shape.images(2)
        module, again, other = self.built(shape), self.built(shape), self.built(shape, seed=1)
        output = module(images)
        require(
            torch.equal(output, module(images)),
            "In evaluation mode its outputs for the same images differ. Disable randomness there.",
        )
        require(
            torch.equal(output, again(images)),
            "Built twice from one seed, its outputs differ. Draw only from torch's generator.",
        )
        module.train()
        torch.manual_seed(0)
        in_training = module(images)
        torch.manual_seed(0)
        require(
            torch.equal(in_training, module(images)),
            "In training mode, its outputs from one seed differ. Draw only from torch's generator.",
        )
        module.eval()
        # Compares weights, not outputs: a head initialised to zero gives equal outputs.
        pairs = list(zip(module.parameters(), other.parameters(), strict=True))
        require(
            not pairs or any(not torch.equal(own, others) for own, others in pairs),
            "Another seed gives the same weights. Initialise them at random.",
        )

    @torch.no_grad()
    def images_do_not_see_each_other(self) -> None:
        """In evaluation mode an image's output does not depend on the rest of the batch."""
        shape = self.usual_shape()
        module, images = self.built(shape), shape.images(3)
        alone = torch.cat([module(image[None]) for image in images])
        _require_close(module(images), alone, "An image's output depends on the other images.")

    @torch.no_grad()
    def leaves_the_images_alone(self) -> None:
        """The input images are not modified."""
        shape = self.usual_shape()
        images = shape.images(2)
        before = images.clone()
        for training in (False, True):
            self.built(shape).train(training)(images)
            require(torch.equal(images, before), "It modifies its input. Work on a copy.")

    @torch.no_grad()
    def weights_survive_a_file(self) -> None:
        """Saved weights, loaded into another instance, give the same outputs."""
        from safetensors.torch import load_file, save_file

        shape = self.usual_shape()
        module, other = self.built(shape), self.built(shape, seed=1)
        images = shape.images(2)
        weights = {
            name: tensor.clone().contiguous() for name, tensor in module.state_dict().items()
        }
        with tempfile.TemporaryDirectory() as folder:
            save_file(weights, Path(folder) / "weights.safetensors")
            other.load_state_dict(load_file(Path(folder) / "weights.safetensors"))
        require(
            torch.equal(module(images), other(images)),
            "With saved weights, its outputs differ. Keep all state in parameters and buffers.",
        )

    def overfits_one_batch(self) -> None:
        """It can memorise eight images, which fails if gradients are broken."""
        torch.manual_seed(0)
        shape = self.usual_shape()
        model = self.learner(shape).train()
        images, labels = shape.images(8), torch.arange(8) % NUM_CLASSES
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
        for _ in range(_MOST_STEPS):
            loss = nn.functional.cross_entropy(model(images), labels)
            if float(loss.detach()) < _LEARNED_LOSS:
                return
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            optimizer.step()
        require(
            False,
            f"After {_MOST_STEPS} steps on one batch of 8 images the loss is "
            f"{float(loss.detach()):.2f}, but must be below {_LEARNED_LOSS}. Check the gradients "
            "and the initial weights.",
        )

    @torch.no_grad()
    def runs_in_bfloat16(self) -> None:
        """Under autocast the outputs stay close to those in float32."""
        shape = self.usual_shape()
        module, images = self.built(shape), shape.images(4)
        expected = module(images)
        with torch.autocast("cpu", torch.bfloat16):
            output = module(images).float()
        require(
            bool(output.isfinite().all()),
            "Under autocast it returns inf or nan. Compute the sensitive parts in float32.",
        )
        error = float((output - expected).norm() / expected.norm().clamp_min(1e-6))
        require(
            error < _BFLOAT16_TOLERANCE,
            f"Under autocast its outputs differ by {error:.0%}; at most {_BFLOAT16_TOLERANCE:.0%} "
            "is allowed. Compute the sensitive parts in float32.",
        )

    @torch.no_grad()
    def compiles(self) -> None:
        """`torch.compile` captures it as one graph that gives the same outputs."""
        shape = self.usual_shape()
        module, images = self.built(shape), shape.images(2)
        torch.compiler.reset()
        # This backend finds graph breaks and needs no C++ compiler.
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        _require_close(compiled(images), module(images), "Compiled, its outputs differ.")
        module.train()
        compiled(images)  # as one graph in training too

    @torch.no_grad()
    def exports_to_onnx(self) -> None:
        """It exports to ONNX with a dynamic batch size, and the outputs agree to 1e-4."""
        from patchline.pipeline.models.onnx_session import open_session

        shape = self.usual_shape()
        module = self.built(shape)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "module.onnx"
            try:
                write_onnx(
                    module, shape.images(2), file, input_name="images", output_names=["output"]
                )
            except PackagingError as error:
                raise CheckError(str(error)) from error
            session = open_session(file)
        for batch in _ONNX_BATCHES:
            images = shape.images(batch, seed=batch)
            outputs = np.asarray(session.run(None, {"images": images.numpy()})[0])
            _require_close(torch.from_numpy(outputs), module(images), "The ONNX outputs differ.")


def require_gradients(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Fail the running check unless every parameter has a gradient that is not all zero."""
    for name, parameter in parameters:
        require(
            parameter.grad is not None and bool((parameter.grad != 0).any()),
            f"The parameter {name} gets no gradient. Check what blocks it.",
        )


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _require_close(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    require(
        actual.shape == expected.shape,
        f"{what} The shape is {tuple(actual.shape)} instead of {tuple(expected.shape)}.",
    )
    scale = max(1.0, float(expected.abs().max()))
    difference = float((actual - expected).abs().max()) / scale
    require(
        difference <= TOLERANCE,
        f"{what} The difference is {difference:.2g} relative to the largest; at most "
        f"{TOLERANCE:g} is allowed.",
    )
