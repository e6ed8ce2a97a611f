"""The processor of this machine, and the instructions that low precision depends on."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import NamedTuple

_FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_ARM_FLAGS = ("asimddp", "i8mm", "bf16")


class Processor(NamedTuple):
    """A processor, and the instructions that low precision depends on."""

    name: str
    instructions: tuple[str, ...]

    @property
    def has_int8_products(self) -> bool:
        """Whether it adds int8 products in 32 bits, which cannot overflow."""
        return bool({"avx_vnni", "avx512_vnni", "amx_int8", "asimddp"} & set(self.instructions))


def this_processor(cpu_information: Path = Path("/proc/cpuinfo")) -> Processor:
    """Return the processor of this machine; without instructions where they are not known."""
    fallback = platform.processor() or platform.machine() or "unknown"
    try:
        text = cpu_information.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Processor(fallback, ())
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    flags = set((fields.get("flags") or fields.get("features") or "").split())
    known = tuple(flag for flag in (*_FLAGS, *_ARM_FLAGS) if flag in flags)
    return Processor(fields.get("model name") or fallback, known)
