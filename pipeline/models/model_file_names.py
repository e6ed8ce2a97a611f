"""The names of the files that a saved model consists of; importing them takes no time."""

from __future__ import annotations

DESCRIPTION_FILE, WEIGHTS_FILE = "model.json", "model.safetensors"
