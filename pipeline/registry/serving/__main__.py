"""Serve a package without a registry: `python -m patchline.pipeline.registry.serving`.

The entry point of a container (`patchline export --to container`), which has neither MLflow nor
torch. Its settings are flags, those of `patchline serve` by the same names.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from patchline.pipeline import config_errors
from patchline.pipeline.errors import PipelineError
from patchline.pipeline.registry.serving import server
from patchline.pipeline.registry.serving.alias_watch import Registry
from patchline.pipeline.registry.serving.checked_package import PackageRefusedError, check_package
from patchline.pipeline.registry.serving.engine import cores
from patchline.pipeline.web.access_control import check_access
from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.listening import check_certificate, open_listening_socket

_OF_A_REGISTRY = {"form", "feedback", "allow_new_classes", "record", "record_images"}
"""Settings that a container does not have."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; return the exit code."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    for name in ("patchline.pipeline.registry.serving", "patchline.pipeline.web"):
        logging.getLogger(name).setLevel(logging.INFO)
    given = _parser().parse_args(arguments)
    try:
        _serve(given)
    except PipelineError as error:
        sys.stderr.write(f"Error: {error}\n")
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m patchline.pipeline.registry.serving", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--package", type=Path, required=True, help="Folder with model.onnx and model.json."
    )
    parser.add_argument("--name", required=True, help="Name of the model in answers.")
    parser.add_argument("--model-version", required=True, help="Version in answers.")
    for name, field in ServingConfig.model_fields.items():
        if name not in _OF_A_REGISTRY:
            action = "append" if name == "allowed_host" else "store"
            flag = f"--{name.replace('_', '-')}"
            parser.add_argument(flag, action=action, help=field.description)
    return parser


def _serve(given: argparse.Namespace) -> None:
    config = _config(given)
    check_access(config)
    check_certificate(config)
    with open_listening_socket(config) as listening:
        first = server.FirstVersion(
            given.name,
            None,
            given.model_version,
            lambda: check_package(given.package, config.threads or cores()),
        )

        def tell() -> None:
            port = listening.getsockname()[1]
            sys.stderr.write(
                f"Serving {given.name}, version {given.model_version}, on {config.host}, port "
                f"{port}.\n"
            )
            sys.stderr.flush()

        try:
            server.serve(first, config, listening, tell, Registry())
        except PackageRefusedError as error:
            raise PackageRefusedError(f"The package cannot be served: {error}.") from error


def _config(given: argparse.Namespace) -> ServingConfig:
    settings = {
        name: value
        for name, value in vars(given).items()
        if name in ServingConfig.model_fields and value is not None
    }
    try:
        return ServingConfig.model_validate(settings)
    except ValidationError as error:
        raise config_errors.sentence(error, ServingConfig) from error


if __name__ == "__main__":
    sys.exit(main())
