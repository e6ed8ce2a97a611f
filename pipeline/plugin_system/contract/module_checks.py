"""Conformance checks of torch modules: models, patch embeddings, and what objectives train.

Shapes: B batch, C channels, H height, W width, N tokens, D embedding, K classes.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from patchline.pipeline.errors import ConfigError, PackagingError
from patchline.pipeline.models.onnx_export import write_onnx
from patchline.pipeline.plugin_system.contract.checks import (
    Check,
    CheckedPlugin,
    CheckError,
    checks,
    find_accepted_side,
    require,
)
from patchline.pipeline.plugin_system.plugin_loader import load_patch_embedding
from patchline.plugin_api import (
    NO_PATCH_EMBEDDING,
    DataTraits,
    ImageSpec,
    ModelContext,
    PatchEmbeddingContext,
    PatchTokens,
)

NUM_CLASSES = 5
_TOLERANCE, _BFLOAT16_TOLERANCE = 1e-4, 0.1
_ONNX_BATCHES = (1, 2, 5)
_MOST_STEPS, _LEARNED_LOSS = 300, 0.3
_SIZES = ((8, 8), (16, 16), (28, 28), (31, 37), (32, 48), (7, 5), (1, 1))
_EMBED_DIM = 32
_IMAGES = 16


class ImageShape(NamedTuple):
    """Channels, height and width of an image."""

    channels: int
    height: int
    width: int

    @property
    def traits(self) -> DataTraits:
        """Traits of data with such images."""
        return DataTraits(*self, num_classes=NUM_CLASSES, mirror_symmetric=True)

    @property
    def image(self) -> ImageSpec:
        """The format of such images, as a model is built with it."""
        half = (0.5,) * self.channels
        return ImageSpec.model_validate(
            {**self._asdict(), "mean": half, "std": half, "resize": "crop"}
        )

    def images(self, batch: int, seed: int = 0) -> torch.Tensor:
        """Return a batch of noise in the range of normalised images: (B, C, H, W).

        As in training, the channels are last in memory.
        """
        generator = torch.Generator().manual_seed(seed)
        images_BCHW = torch.randn(batch, *self, generator=generator)
        return images_BCHW.contiguous(memory_format=torch.channels_last)


class ModuleSubject(CheckedPlugin):
    """A plugin that builds a torch module; a subclass says how."""

    def build(self, shape: ImageShape) -> nn.Module:
        """Build the module for images of a shape, settings resolved: one tensor in, one out."""
        raise NotImplementedError

    def learner(self, shape: ImageShape) -> nn.Module:
        """Build a classifier from the module: `images_BCHW -> logits_BK`."""
        return self.build(shape)

    def usual_shape(self, channels: int = 3) -> ImageShape:
        """Return the smallest usual square image size that the plugin accepts.

        Raises:
            ConfigError: if it accepts no size from 32 to 384 pixels.
        """
        side = find_accepted_side(lambda each: self.build(ImageShape(channels, each, each)))
        return ImageShape(channels, side, side)

    def built(self, shape: ImageShape | None = None, seed: int = 0) -> nn.Module:
        """Build from a seed, in evaluation mode."""
        shape = shape or self.usual_shape()
        torch.manual_seed(seed)
        return self.build(shape).eval()

    def sample(self, batch: int) -> tuple[nn.Module, torch.Tensor]:
        """Return the module for the usual shape, and a batch of images."""
        shape = self.usual_shape()
        return self.built(shape), shape.images(batch)


def fits_or_refuses_every_size(subject: ModuleSubject) -> None:
    """An image size either works or is refused by `resolved_for` with a clear message."""
    for height, width in _SIZES:
        shape = ImageShape(3, height, width)
        try:
            with torch.no_grad():
                output = subject.built(shape)(shape.images(2))
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


def every_parameter_gets_a_gradient(subject: ModuleSubject) -> None:
    """In training every parameter gets a gradient that is not always zero.

    A head initialised to zero blocks the gradient of the rest of the model in the first step,
    so the check takes two steps.
    """
    module, images = subject.sample(8)
    module.train()
    moved: set[str] = set()
    for _ in range(2):
        output = module(images)
        (output * torch.randn_like(output)).sum().backward()
        for name, parameter in module.named_parameters():
            gradient = parameter.grad
            if gradient is None:
                raise CheckError(
                    f"The parameter {name} gets no gradient. Use it in forward, remove it, or make "
                    "it a buffer if it should not be trained."
                )
            if bool((gradient != 0).any()):
                moved.add(name)
            with torch.no_grad():
                parameter.sub_(gradient, alpha=0.1)
            parameter.grad = None
    for name, _ in module.named_parameters():
        require(name in moved, f"The gradient of {name} is zero. Check what blocks it.")


@torch.no_grad()
def same_seed_same_output(subject: ModuleSubject) -> None:
    """The seed determines the weights, and outputs in evaluation mode are deterministic."""
    module, images = subject.sample(2)
    again, other = subject.built(), subject.built(seed=1)
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
def images_do_not_see_each_other(subject: ModuleSubject) -> None:
    """In evaluation mode an image's output does not depend on the rest of the batch."""
    module, images = subject.sample(3)
    alone = torch.cat([module(image[None]) for image in images])
    _require_close(module(images), alone, "An image's output depends on the other images.")


@torch.no_grad()
def leaves_the_images_alone(subject: ModuleSubject) -> None:
    """The input images are not modified."""
    module, images = subject.sample(2)
    before = images.clone()
    for training in (False, True):
        module.train(training)(images)
        require(torch.equal(images, before), "It modifies its input. Work on a copy.")


@torch.no_grad()
def weights_survive_a_file(subject: ModuleSubject) -> None:
    """Saved weights, loaded into another instance, give the same outputs."""
    from safetensors.torch import load_file, save_file

    module, images = subject.sample(2)
    other = subject.built(seed=1)
    weights = {name: tensor.clone().contiguous() for name, tensor in module.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        save_file(weights, Path(folder) / "weights.safetensors")
        other.load_state_dict(load_file(Path(folder) / "weights.safetensors"))
    require(
        torch.equal(module(images), other(images)),
        "With saved weights, its outputs differ. Keep all state in parameters and buffers.",
    )


def overfits_one_batch(subject: ModuleSubject) -> None:
    """It can memorise eight images, which fails if gradients are broken."""
    torch.manual_seed(0)
    shape = subject.usual_shape()
    model = subject.learner(shape).train()
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
def runs_in_bfloat16(subject: ModuleSubject) -> None:
    """Under autocast the outputs stay close to those in float32."""
    module, images = subject.sample(4)
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
def compiles(subject: ModuleSubject) -> None:
    """`torch.compile` captures it as one graph that gives the same outputs."""
    module, images = subject.sample(2)
    torch.compiler.reset()
    # This backend finds graph breaks and needs no C++ compiler.
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    _require_close(compiled(images), module(images), "Compiled, its outputs differ.")
    module.train()
    compiled(images)  # as one graph in training too


@torch.no_grad()
def exports_to_onnx(subject: ModuleSubject) -> None:
    """It exports to ONNX with a dynamic batch size, and the outputs agree to 1e-4."""
    from patchline.pipeline.models.onnx_session import open_session

    module, example = subject.sample(2)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "module.onnx"
        try:
            write_onnx(module, example, file, input_name="images", output_names=["output"])
        except PackagingError as error:
            raise CheckError(str(error)) from error
        session = open_session(file)
    for batch in _ONNX_BATCHES:
        images = subject.usual_shape().images(batch, seed=batch)
        outputs = np.asarray(session.run(None, {"images": images.numpy()})[0])
        _require_close(torch.from_numpy(outputs), module(images), "The ONNX outputs differ.")


def _require_close(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    require(
        actual.shape == expected.shape,
        f"{what} The shape is {tuple(actual.shape)} instead of {tuple(expected.shape)}.",
    )
    scale = max(1.0, float(expected.abs().max()))
    difference = float((actual - expected).abs().max()) / scale
    require(
        difference <= _TOLERANCE,
        f"{what} The difference is {difference:.2g} relative to the largest; at most "
        f"{_TOLERANCE:g} is allowed.",
    )


_OF_MODULES = (
    fits_or_refuses_every_size,
    every_parameter_gets_a_gradient,
    same_seed_same_output,
    images_do_not_see_each_other,
    leaves_the_images_alone,
    weights_survive_a_file,
    overfits_one_batch,
    runs_in_bfloat16,
    compiles,
    exports_to_onnx,
)


# -- models ----------------------------------------------------------------------------------------


def model_table(subject: CheckedPlugin) -> list[Check]:
    """Return the checks of a model with the given settings and its default patch embedding."""
    return checks(ModelSubject(subject.plugin, subject.settings), returns_logits, *_OF_MODULES)


class ModelSubject(ModuleSubject):
    """A model with its default patch embedding."""

    embeddings_built = 0

    def build(self, shape: ImageShape, num_classes: int = NUM_CLASSES) -> nn.Module:
        """Build the model."""

        def patch_embedding(embed_dim: int) -> nn.Module:
            require(
                self.plugin.patch_embedding != NO_PATCH_EMBEDDING,
                "It builds a patch embedding, but declares that it takes none "
                "(patch_embedding=NO_PATCH_EMBEDDING). Set patch_embedding to the one it uses.",
            )
            self.embeddings_built += 1
            plugin = load_patch_embedding(self.plugin.patch_embedding)
            settings = plugin.config_class().resolved_for(shape.traits)
            return plugin.build(settings, PatchEmbeddingContext(*shape, embed_dim=embed_dim))

        context = ModelContext(shape.image, num_classes, patch_embedding)
        return _module(self.plugin.build(self.settings.resolved_for(shape.traits), context))


@torch.no_grad()
def returns_logits(subject: ModelSubject) -> None:
    """It returns float32 logits (B, K) for colour and greyscale images, and any K classes."""
    for channels, num_classes in ((3, NUM_CLASSES), (1, NUM_CLASSES), (3, 2), (3, 11)):
        shape = subject.usual_shape(channels)
        logits = subject.build(shape, num_classes).eval()(shape.images(2))
        require(
            subject.embeddings_built or subject.plugin.patch_embedding == NO_PATCH_EMBEDDING,
            "It never builds its patch embedding. Call context.patch_embedding(embed_dim), or "
            "declare that it takes none: patch_embedding=NO_PATCH_EMBEDDING.",
        )
        require(
            isinstance(logits, torch.Tensor),
            f"It returns {type(logits).__name__}. Return the logits as one tensor.",
        )
        require(
            tuple(logits.shape) == (2, num_classes),
            f"Its logits have the shape {tuple(logits.shape)}. For 2 images and {num_classes} "
            f"classes, (2, {num_classes}) is expected. Use context.num_classes.",
        )
        require(logits.dtype == torch.float32, f"Its logits are {logits.dtype}. Keep float32.")


# -- patch embeddings ------------------------------------------------------------------------------


def patch_embedding_table(subject: CheckedPlugin) -> list[Check]:
    """Return the checks of a patch embedding with the given settings."""
    embedding = PatchEmbedding(subject.plugin, subject.settings)
    return checks(embedding, returns_patch_tokens, *_OF_MODULES)


class PatchEmbedding(ModuleSubject):
    """A patch embedding, of which the tokens are checked as those of any module."""

    def embedding(self, shape: ImageShape) -> Any:
        """Build the embedding itself."""
        context = PatchEmbeddingContext(*shape, embed_dim=_EMBED_DIM)
        return _module(self.plugin.build(self.settings.resolved_for(shape.traits), context))

    def build(self, shape: ImageShape) -> nn.Module:
        """Build the embedding, wrapped so that it returns only its tokens."""
        return _Tokens(self.embedding(shape))

    def learner(self, shape: ImageShape) -> nn.Module:
        """Build a linear classifier of the averaged tokens."""
        return nn.Sequential(self.build(shape), _LinearOfMean(_EMBED_DIM, NUM_CLASSES))


class _Tokens(nn.Module):
    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        patches: PatchTokens = self.embedding(images_BCHW)
        return patches.tokens_BND


class _LinearOfMean(nn.Linear):
    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens_BND.mean(dim=1))


@torch.no_grad()
def returns_patch_tokens(subject: PatchEmbedding) -> None:
    """It returns tokens (B, N, D) and their grid; the grid is known before any image."""
    usual = subject.usual_shape()
    oblong = usual._replace(width=2 * usual.width)
    with suppress(ConfigError):  # it may refuse images that are not square
        subject.embedding(oblong)
        usual = oblong
    for shape in (subject.usual_shape(), subject.usual_shape(1), usual):
        torch.manual_seed(0)
        embedding = subject.embedding(shape).eval()
        grid: Any = getattr(embedding, "grid", None)
        require(
            _is_grid(grid),
            f"Its attribute grid is {grid!r}. Set it to (rows, columns), two positive "
            "integers, when it is built.",
        )
        patches = embedding(shape.images(2))
        require(
            isinstance(patches, PatchTokens),
            f"It returns {type(patches).__name__}. Return PatchTokens(tokens_BND, grid).",
        )
        rows, columns = grid
        expected = (2, rows * columns, _EMBED_DIM)
        require(
            tuple(patches.tokens_BND.shape) == expected,
            f"Its tokens have the shape {tuple(patches.tokens_BND.shape)}. For 2 images, a "
            f"grid of {rows}x{columns} and D = {_EMBED_DIM}, {expected} is expected.",
        )
        require(
            tuple(patches.grid) == tuple(grid),
            f"It returns the grid {patches.grid}, but its attribute grid is {grid}.",
        )
        require(
            patches.tokens_BND.dtype == torch.float32,
            f"Its tokens are {patches.tokens_BND.dtype}. Keep float32.",
        )
        _require_row_by_row(embedding, shape)


def _require_row_by_row(embedding: Any, shape: ImageShape) -> None:
    """Change the middle of the upper edge: the token that changes most must be there."""
    rows, columns = embedding.grid
    # The left half of a token: a whole one would cover two if rows and columns are swapped.
    height, width = -(-shape.height // rows), max(1, shape.width // columns // 2)
    left = columns // 2 * shape.width // columns
    images = shape.images(_IMAGES)  # many: in a single image another token may change more
    changed = images.clone()
    changed[:, :, :height, left : left + width] += 3
    before, after = embedding(images).tokens_BND, embedding(changed).tokens_BND
    most = int((after - before).norm(dim=-1).mean(dim=0).argmax())
    row, column = divmod(most, columns)
    require(
        row <= 1 and abs(column - columns // 2) <= 1,
        f"A change in the middle of the upper edge of a {shape.height}x{shape.width} image "
        f"changes token {most} most, which is at row {row}, column {column} of the "
        f"{rows}x{columns} grid. Order the tokens row by row, and set grid to (rows, columns).",
    )


def _module(built: object) -> nn.Module:
    if not isinstance(built, nn.Module):
        raise CheckError(f"It builds a {type(built).__name__}. Build a torch.nn.Module.")
    return built


def _is_grid(grid: object) -> bool:
    return (
        isinstance(grid, tuple)
        and len(grid) == 2  # noqa: PLR2004 - rows and columns
        and all(isinstance(side, int) and side > 0 for side in grid)
    )
