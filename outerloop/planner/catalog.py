"""GPUs the planner knows: memory, peaks, links and the utilisation that published runs reached.

Covers the cards of common Slurm sites. Not covered: AMD and Intel accelerators, MIG slices, fp8. A request may carry
its own `gpu` table with the same fields.

Peaks and memory are NVIDIA's data sheets, dense (without sparsity). `link_gb_per_s` is one direction of NVLink, or of
PCIe where the card has no NVLink. Utilisation is the share of the peak that a whole training step sustains, counting
6 FLOPs per parameter and token plus attention (PaLM's convention, arXiv 2204.02311) and recomputation by the time it
takes.

Frozen on 2026-11-29. Fitted to exactly two published rows:
  * H100: torchtitan's Llama 3.1 8B on 8 H100 (5,762 tokens/s/GPU, without torch.compile);
  * A100: PyTorch/IBM's Llama 2 7B on 128 A100 (3,700 tokens/s/GPU).
Held out, checked in tests/unit/planner/test_published_figures.py, and no constant was set for their sake: torchtitan on
128 H100 and on 64 A100 (8B and 70B), PyTorch/IBM's 7B on H100 and 13B and 34B on both cards. Cards without a published
training figure carry the default range and say so in `utilisation_source`.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from outerloop.planner.arithmetic import Frozen

Precision = Literal["fp32", "bf16", "fp16", "bf16_pure"]
"""fp32: everything in fp32 (TF32 matrix products where the card has them). bf16, fp16: mixed precision, fp32 weights
and optimizer. bf16_pure: weights, gradients and optimizer state in bf16."""


class Utilisation(Frozen):
    """Share of peak FLOP/s sustained over a training step: pessimistic, central, optimistic."""

    low: float = Field(gt=0, le=1, description="Pessimistic.")
    central: float = Field(gt=0, le=1, description="Central.")
    high: float = Field(gt=0, le=1, description="Optimistic.")

    @model_validator(mode="after")
    def _ordered(self) -> Utilisation:
        if not self.low <= self.central <= self.high:
            raise ValueError("utilisation must satisfy low <= central <= high")
        return self


class Gpu(Frozen):
    """One kind of GPU. TFLOP/s are dense peaks; `bf16_tflops` None means that the card has no bf16."""

    name: str = Field(description="What it is called.")
    memory_gb: float = Field(gt=0, le=10**9, description="Memory, in GB.")
    bf16_tflops: float | None = Field(
        default=None, gt=0, le=10**9, description="Dense peak in bf16. Unset: the card has none."
    )
    fp16_tflops: float = Field(gt=0, le=10**9, description="Dense peak in fp16.")
    fp32_tflops: float = Field(gt=0, le=10**9, description="TF32 where the card has it")
    link_gb_per_s: float = Field(gt=0, le=10**9, description="one direction, GPU to GPU inside a host")
    pcie_gb_per_s: float = Field(gt=0, le=10**9, description="one direction, host memory to GPU")
    utilisation: Utilisation = Field(description="Share of the peak that a training step sustains.")
    utilisation_source: str = Field(default="given", description="Where that share comes from.")
    source: str = Field(default="given", description="Where the other figures come from.")

    def peak_tflops(self, precision: Precision) -> float | None:
        """Dense peak for `precision`; None when the card cannot compute in it."""
        if precision == "fp32":
            return self.fp32_tflops
        return self.fp16_tflops if precision == "fp16" else self.bf16_tflops


UNFITTED = Utilisation(low=0.25, central=0.40, high=0.55)
_NOT_FITTED = "default range; no published training figure fitted"
_HOPPER = Utilisation(low=0.30, central=0.38, high=0.55)
_AMPERE = Utilisation(low=0.42, central=0.58, high=0.66)
_H100_ROW = "torchtitan llama3_h100_202412, table 1 row 1 (fitted)"
_A100_ROW = "PyTorch/IBM FSDP post, Llama 2 7B (fitted)"
_SHEET = "NVIDIA data sheet"

# Links, one direction: NVLink 4 450, NVLink 3 300, NVLink 2 150 GB/s; PCIe 5/4/3 x16 at 63/31.5/15.75 GB/s raw, about
# 80 % of which copies reach.
_PCIE5, _PCIE4, _PCIE3 = 50.0, 25.0, 12.5


def _gpu(
    name: str,
    memory_gb: float,
    bf16: float | None,
    fp16: float,
    fp32: float,
    link: float,
    pcie: float,
    utilisation: Utilisation = UNFITTED,
    utilisation_source: str = _NOT_FITTED,
) -> Gpu:
    return Gpu(
        name=name,
        memory_gb=memory_gb,
        bf16_tflops=bf16,
        fp16_tflops=fp16,
        fp32_tflops=fp32,
        link_gb_per_s=link,
        pcie_gb_per_s=pcie,
        utilisation=utilisation,
        utilisation_source=utilisation_source,
        source=_SHEET,
    )


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        # The H200 is the H100's chip with more memory: it takes the H100's fit.
        _gpu("H200", 141, 989, 989, 494, 450, _PCIE5, _HOPPER, f"same chip as the H100: {_H100_ROW}"),
        _gpu("H100-96GB", 96, 989, 989, 494, 450, _PCIE5, _HOPPER, _H100_ROW),
        _gpu("H100", 80, 989, 989, 494, 450, _PCIE5, _HOPPER, _H100_ROW),
        _gpu("A100-80GB", 80, 312, 312, 156, 300, _PCIE4, _AMPERE, _A100_ROW),
        _gpu("A100-40GB", 40, 312, 312, 156, 300, _PCIE4, _AMPERE, _A100_ROW),
        _gpu("L40S", 48, 362, 362, 183, _PCIE4, _PCIE4),
        _gpu("RTX4090", 24, 165, 165, 82.6, _PCIE4, _PCIE4),
        _gpu("RTX3090", 24, 71, 71, 35.6, _PCIE4, _PCIE4),
        _gpu("A10", 24, 125, 125, 62.5, _PCIE4, _PCIE4),
        _gpu("L4", 24, 121, 121, 60, _PCIE4, _PCIE4),
        _gpu("V100-32GB", 32, None, 125, 15.7, 150, _PCIE3),
        _gpu("V100-16GB", 16, None, 125, 15.7, 150, _PCIE3),
        _gpu("T4", 16, None, 65, 8.1, _PCIE3, _PCIE3),
    )
}

ALIASES: dict[str, str] = {
    "a100": "A100-80GB",
    "v100": "V100-32GB",
    "4090": "RTX4090",
    "3090": "RTX3090",
    "a10g": "A10",
}


_PREFIXES = ("nvidia", "tesla", "geforce")
_FORM_FACTOR = re.compile(r"sxm\d?|hbm\d?e?$")


def _squash(name: str) -> str:
    squashed = "".join(c for c in name.lower() if c.isalnum())
    for prefix in _PREFIXES:
        squashed = squashed.removeprefix(prefix)
    # Driver names put the memory before the kind of memory, and the form factor anywhere.
    return _FORM_FACTOR.sub("", squashed)


def find_gpu(name: str) -> Gpu:
    """The catalogue's GPU for a name as people and Slurm spell it (`h100`, `NVIDIA RTX 4090`, `a100-sxm4-80gb`).

    PCIe variants are not taken for their SXM namesakes: their peaks or links differ.

    Raises:
        KeyError: no such GPU.
    """
    wanted = _squash(name)
    by_squash = {_squash(known): gpu for known, gpu in GPUS.items()}
    # A trailing memory size may be part of the catalogue's name (A100-40GB) or the driver's (H100 80GB).
    if wanted in by_squash:
        return by_squash[wanted]
    if wanted in ALIASES:
        return GPUS[ALIASES[wanted]]
    for squashed, gpu in by_squash.items():
        if wanted == f"{squashed}{gpu.memory_gb:g}gb":
            return gpu
    raise KeyError(name)
