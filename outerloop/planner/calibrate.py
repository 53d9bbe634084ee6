"""The memory estimator against PyTorch's own account: predicted bytes versus the fake-tensor memory tracker.

Covers a reference decoder written from a ModelShape, run for one micro-step on fake CPU tensors (nothing is allocated,
nothing computed) under torch's MemTracker, with optimizer state and gradients already there, as in any micro-step but
the first of an accumulated batch. Both sides are estimates, and the table says so: the tracker counts what the
reference decoder would allocate on a CPU, not what a real run on a GPU reserves. Not covered: CUDA's own context, the
allocator's slack, NCCL; a recorded run's peak replaces estimates through `MeasuredFigure`, not through this module.

The two are not independent. No constant was chosen to match the tracker's numbers, but the estimator's structure was
changed after the first comparison showed a gap: since then the peak is the larger of two moments of the backward
instead of one sum, softmax's backward is counted (LOSS_BACKWARD_BYTES), and fp32 logits take 12 bytes instead of 8.
Each change names the tensor that it stands for. So a small difference here says that both count the same tensors, not
that either is right; published and recorded peaks say that.

torch is imported inside functions: the planner works without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outerloop.planner.arithmetic import GB, total
from outerloop.planner.layout import Layout
from outerloop.planner.memory import gpu_memory
from outerloop.planner.request import Lora, Optimizer
from outerloop.planner.shapes import SHAPES, ModelShape

NOT_TRACKED = ("CUDA context", "NCCL buffers", "allocator slack")
"""Lines of the estimate that stand for what the tracker cannot see."""

DEPTHS = (2, 6)
"""Deeper models are tracked at these two depths and continued in a straight line: blocks are alike, so state and
activations grow linearly with their number. The tracker's own cost grows faster than that."""


@dataclass(frozen=True)
class Comparison:
    """One case: predicted and tracked peak in GB, and their relative difference (predicted over tracked, minus 1)."""

    case: str
    predicted_gb: float
    tracked_gb: float

    @property
    def difference(self) -> float:
        """+0.05: the estimate is 5 % above the tracker."""
        return self.predicted_gb / self.tracked_gb - 1


def predicted_gb(layout: Layout) -> float:
    """The estimate's share that the tracker can see, in GB."""
    return total(line for line in gpu_memory(layout).lines if line.label not in NOT_TRACKED)


def tiny_shape() -> ModelShape:
    """A gated decoder of 4 layers, 256 wide: small enough for a test, deep enough to have activations."""
    base = SHAPES["llama-3.2-1b"]
    return base.model_copy(
        update={
            "name": "tiny", "hidden": 256, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 64,
            "feed_forward": 1024, "vocabulary": 4096,
        }
    )  # fmt: skip


def _layout(shape: ModelShape, **fields: Any) -> Layout:
    values: dict[str, Any] = {
        "family": "single_gpu",
        "workers": 1,
        "gpus_per_host": 8,
        "shard": 1,
        "precision": "bf16",
        "optimizer": "adamw",
        "shape": shape,
        "sequence": 2048,
    }
    return Layout(**(values | fields))


def standard_cases() -> dict[str, Layout]:
    """The cases of the documentation's table: six models, four strategies, four kinds of training."""
    sgd: Optimizer = "sgd_momentum"
    sharded: dict[str, Any] = {"family": "fsdp2", "workers": 8, "shard": 8}
    all_linears = Lora(rank=16)
    attention = Lora(rank=16, targets=("q_proj", "k_proj", "v_proj", "o_proj"))
    one, eight, half = SHAPES["llama-3.2-1b"], SHAPES["llama-3.1-8b"], SHAPES["qwen2.5-0.5b"]
    return {
        "tiny, single_gpu, fp32": _layout(tiny_shape(), precision="fp32", micro_batch=4),
        "tiny, single_gpu, fp32, SGD": _layout(tiny_shape(), precision="fp32", micro_batch=4, optimizer=sgd),
        "gpt2, single_gpu, bf16_pure": _layout(SHAPES["gpt2"], precision="bf16_pure", sequence=1024, micro_batch=8),
        "qwen2.5-0.5b, single_gpu, bf16": _layout(half, micro_batch=2),
        "llama-3.2-1b, single_gpu, bf16": _layout(one, micro_batch=2),
        "llama-3.2-1b, single_gpu, bf16, checkpointing": _layout(one, micro_batch=4, checkpointing="full"),
        "llama-3.1-8b, single_gpu, bf16_pure": _layout(eight, precision="bf16_pure"),
        "llama-3.1-8b, single_gpu, LoRA on attention": _layout(eight, lora=attention),
        "llama-3.1-8b, single_gpu, LoRA on all, checkpointing": _layout(
            eight, lora=all_linears, checkpointing="full", micro_batch=2
        ),
        "qwen2.5-7b, single_gpu, LoRA on all": _layout(SHAPES["qwen2.5-7b"], lora=all_linears),
        "llama-3.2-1b, fsdp2_x8, bf16": _layout(one, micro_batch=2, **sharded),
        "llama-3.1-8b, fsdp2_x8, bf16": _layout(eight, micro_batch=2, **sharded),
        "llama-3.1-8b, fsdp2_x8, bf16, checkpointing": _layout(eight, micro_batch=2, checkpointing="full", **sharded),
    }


def _shape(layout: Layout) -> ModelShape:
    if layout.shape is None:
        raise ValueError("only transformers have a reference")
    return layout.shape


def _reference_model(layout: Layout) -> Any:
    """A decoder with the layout's shape, in plain PyTorch, as common implementations compute it."""
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    shape = _shape(layout)
    base_dtype = torch.float32
    if layout.precision == "bf16_pure" or (layout.lora and layout.precision != "fp32"):
        base_dtype = torch.bfloat16
    gated = shape.feed_forward_kind == "gated"

    class RmsNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(shape.hidden, dtype=base_dtype))

        def forward(self, x: Any) -> Any:
            wide = x.to(torch.float32)
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * wide.to(x.dtype)

    class Adapted(nn.Module):
        """A linear layer, with a LoRA adapter beside a frozen weight where the layout has one."""

        def __init__(self, name: str) -> None:
            super().__init__()
            inside, outside = shape.linears[name]
            bias = shape.all_biases or (shape.qkv_bias and name in ("q_proj", "k_proj", "v_proj"))
            self.base = nn.Linear(inside, outside, bias=bias, dtype=base_dtype)
            self.adapted = layout.lora is not None and name in layout.lora.targets
            if layout.lora is not None and self.adapted:
                self.down = nn.Linear(inside, layout.lora.rank, bias=False)
                self.up = nn.Linear(layout.lora.rank, outside, bias=False)

        def forward(self, x: Any) -> Any:
            y = self.base(x)
            # The adapter is fp32: its input is cast, as peft does, and autocast casts it back.
            return y + self.up(self.down(x.to(torch.float32))) if self.adapted else y

    def norm() -> nn.Module:
        return RmsNorm() if shape.norm == "rmsnorm" else nn.LayerNorm(shape.hidden, dtype=base_dtype)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(norm() for _ in range(shape.norms_per_layer))
            self.linears = nn.ModuleDict({name: Adapted(name) for name in shape.linears})

        def attention(self, x: Any) -> Any:
            batch, length, _ = x.shape

            def heads(name: str, count: int) -> Any:
                return self.linears[name](x).view(batch, length, count, shape.head_dim).transpose(1, 2)

            query, key, value = (
                heads("q_proj", shape.heads),
                heads("k_proj", shape.kv_heads),
                heads("v_proj", shape.kv_heads),
            )
            grouped = shape.heads != shape.kv_heads
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
            return self.linears["o_proj"](mixed.transpose(1, 2).reshape(batch, length, shape.query_width))

        def feed_forward(self, x: Any) -> Any:
            up = self.linears["up_proj"](x)
            wide = functional.silu(self.linears["gate_proj"](x)) * up if gated else functional.gelu(up)
            return self.linears["down_proj"](wide)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norms[0](x))
            return x + self.feed_forward(self.norms[1](x))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(shape.vocabulary, shape.hidden, dtype=base_dtype)
            self.blocks = nn.ModuleList(Block() for _ in range(shape.layers))
            self.final = norm()
            self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False, dtype=base_dtype)
            if shape.tied_embeddings:
                self.head.weight = self.embedding.weight
            if layout.lora is not None:
                self._freeze_base()

        def _freeze_base(self) -> None:
            """Frozen weights become buffers: the tracker hooks every parameter, and these have no gradient."""
            for path, module in self.named_modules():
                for name, parameter in list(module._parameters.items()):
                    if parameter is not None and not path.endswith((".down", ".up")):
                        del module._parameters[name]
                        module.register_buffer(name, parameter.detach())

        def forward(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            if layout.lora is not None and layout.checkpointing == "full":
                x.requires_grad_()  # as enable_input_require_grads does, so that checkpointed blocks have a backward
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if layout.checkpointing == "full" else block(x)
            return self.head(self.final(x))

    return Decoder()


def _shard(model: Any, mesh: Any) -> None:
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def tracked_gb(layout: Layout) -> float:
    """Peak of one micro-step of the reference decoder in torch's fake-tensor memory tracker, in GB.

    Models deeper than `DEPTHS` are tracked at two depths and continued linearly. Uses torch's fake process group for
    sharded layouts, which must not meet another process group in this process.

    Raises:
        ImportError: torch is not installed.
        ValueError: the tracker cannot run this layout (offload, quantization, selective checkpointing, hsdp, ddp).
    """
    if layout.family not in ("single_gpu", "fsdp2") or layout.quantized or layout.checkpointing == "selective":
        raise ValueError(f"the tracker has no reference for {layout.name}")
    shape = _shape(layout)
    shallow, deep = DEPTHS
    if shape.layers <= deep:
        return _tracked(layout)
    low, high = (_tracked(replace(layout, shape=shape.model_copy(update={"layers": n}))) for n in DEPTHS)
    return low + (high - low) * (shape.layers - shallow) / (deep - shallow)


def _tracked(layout: Layout) -> float:
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.nn import functional

    grouped = layout.family == "fsdp2"
    if grouped:
        # Importing the module registers the "fake" backend.
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=layout.workers, store=FakeStore())
    try:
        # The mesh reads its ranks' numbers, so they must be real.
        mesh = dist.device_mesh.init_device_mesh("cpu", (layout.workers,)) if grouped else None
        with FakeTensorMode():
            model = _reference_model(layout)
            if grouped:
                _shard(model, mesh)
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            optimizer: Any
            # The fused kernels, which trainers use on GPUs, have no temporaries.
            if layout.optimizer == "adamw":
                optimizer = torch.optim.AdamW(trained, fused=True)
            else:
                optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9, fused=True)
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            tokens = torch.zeros(layout.micro_batch, layout.sequence, dtype=torch.int64)
            tracker = MemTracker()
            tracker.track_external(model, optimizer, tokens, *(p.grad for p in trained if p.grad is not None))
            autocast = layout.precision == "bf16" and not grouped
            with tracker:
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                    logits = model(tokens)
                loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())
                torch.autograd.backward(loss)
            peak = tracker.get_tracker_snapshot("peak")
    finally:
        if grouped:
            dist.destroy_process_group()
    return float(sum(figures["Total"] for figures in peak.values())) / GB


def compare(cases: dict[str, Layout] | None = None) -> list[Comparison]:
    """Predicted against tracked peak memory for each case (default: the standard ones)."""
    chosen = standard_cases() if cases is None else cases
    return [Comparison(name, predicted_gb(layout), tracked_gb(layout)) for name, layout in chosen.items()]


def render(comparisons: Sequence[Comparison]) -> str:
    """The comparisons as a Markdown table."""
    rows = [
        "| case | predicted GB | tracked GB | difference |",
        "|---|---|---|---|",
    ]
    for item in comparisons:
        rows.append(f"| {item.case} | {item.predicted_gb:.2f} | {item.tracked_gb:.2f} | {item.difference:+.1%} |")
    return "\n".join(rows) + "\n"
