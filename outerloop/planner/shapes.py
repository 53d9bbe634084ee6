"""Shapes of transformer models and what follows from them: parameter counts, LoRA sizes, KV cache.

Covers dense decoder-only models. Not covered: mixture of experts, encoders, multimodal towers. The figures are the
fields of each model's own published config; parameter counts follow from them and agree with the published totals to
1 % (tests/unit/planner/test_shapes.py). A request may carry a `shape` table with the same fields.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from outerloop.planner.arithmetic import Frozen

LINEAR_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of one block; `gate_proj` exists only in gated feed-forwards."""

LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class ModelShape(Frozen):
    """A dense decoder-only transformer. All widths in elements."""

    name: str = Field(description="What it is called.")
    hidden: int = Field(gt=0, le=10**9, description="Width of the residual stream.")
    layers: int = Field(gt=0, le=10**9, description="Number of blocks.")
    heads: int = Field(gt=0, le=10**9, description="Query heads.")
    kv_heads: int = Field(gt=0, le=10**9, description="Key and value heads.")
    head_dim: int = Field(gt=0, le=10**9, description="Width of a head.")
    feed_forward: int = Field(gt=0, le=10**9, description="Inner width of the feed-forward.")
    vocabulary: int = Field(gt=0, le=10**9, description="Tokens of the vocabulary.")
    tied_embeddings: bool = Field(default=False, description="Whether input and output embeddings are one matrix.")
    feed_forward_kind: Literal["gated", "plain"] = Field(default="gated", description="Three matrices (gated) or two.")
    norm: Literal["rmsnorm", "layernorm"] = Field(default="rmsnorm", description="Which norm it has.")
    norms_per_layer: int = Field(default=2, gt=0, le=10**9, description="Norms of one block.")
    qkv_bias: bool = Field(default=False, description="Whether query, key and value have biases.")
    all_biases: bool = Field(default=False, description="Whether every linear layer has one.")
    learned_positions: int = Field(default=0, ge=0, le=10**9, description="Rows of a learned position table; 0: none.")
    source: str = Field(default="given", description="Where the figures come from.")

    @property
    def query_width(self) -> int:
        """Elements of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of all key heads together (the values have as many)."""
        return self.kv_heads * self.head_dim

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """The block's linear layers: name -> (input width, output width)."""
        h, f = self.hidden, self.feed_forward
        shapes = {
            "q_proj": (h, self.query_width),
            "k_proj": (h, self.kv_width),
            "v_proj": (h, self.kv_width),
            "o_proj": (self.query_width, h),
        }
        if self.feed_forward_kind == "gated":
            shapes["gate_proj"] = (h, f)
        shapes["up_proj"] = (h, f)
        shapes["down_proj"] = (f, h)
        return shapes

    @property
    def linear_parameters_per_layer(self) -> int:
        """Weights of one block's linear layers: what 4-bit quantization touches."""
        # Written out, not summed over `linears`: the planner asks for it thousands of times.
        feed_forward = (3 if self.feed_forward_kind == "gated" else 2) * self.feed_forward
        return self.hidden * (2 * self.query_width + 2 * self.kv_width + feed_forward)

    @property
    def parameters_per_layer(self) -> int:
        """All parameters of one block, biases and norms included."""
        norm_width = self.hidden * (2 if self.norm == "layernorm" else 1)
        biases = 0
        if self.all_biases:
            biases = sum(out for _, out in self.linears.values())
        elif self.qkv_bias:
            biases = self.query_width + 2 * self.kv_width
        return self.linear_parameters_per_layer + biases + self.norms_per_layer * norm_width

    @property
    def embedding_parameters(self) -> int:
        """The input embedding, learned positions included."""
        return (self.vocabulary + self.learned_positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """The output head's own weights: none when tied to the embedding."""
        return 0 if self.tied_embeddings else self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters; tied ones once."""
        final_norm = self.hidden * (2 if self.norm == "layernorm" else 1)
        blocks = self.layers * self.parameters_per_layer
        return blocks + self.embedding_parameters + self.head_parameters + final_norm

    @property
    def matmul_parameters(self) -> int:
        """Parameters that enter a matrix product for each token: all but the input embedding look-up."""
        return self.layers * self.linear_parameters_per_layer + self.vocabulary * self.hidden

    def lora_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Adapter parameters: rank × (input + output) of each adapted projection, GQA widths included."""
        adapted = [self.linears[name] for name in targets if name in self.linears]
        return self.layers * sum(rank * (a + b) for a, b in adapted)

    def kv_cache_bytes_per_token(self, bytes_per_element: float = 2.0) -> float:
        """2 × layers × KV heads × head dim × bytes: what serving keeps for each token of context."""
        return 2 * self.layers * self.kv_width * bytes_per_element


def _shape(
    name: str,
    hidden: int,
    layers: int,
    heads: tuple[int, int],
    feed_forward: int,
    vocabulary: int,
    *,
    head_dim: int | None = None,
    **fields: object,
) -> ModelShape:
    values: dict[str, object] = {
        "name": name,
        "hidden": hidden,
        "layers": layers,
        "heads": heads[0],
        "kv_heads": heads[1],
        "head_dim": head_dim or hidden // heads[0],
        "feed_forward": feed_forward,
        "vocabulary": vocabulary,
        "source": "the model's published config",
        **fields,
    }
    return ModelShape.model_validate(values)


SHAPES: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _shape("qwen2.5-0.5b", 896, 24, (14, 2), 4864, 151_936, tied_embeddings=True, qkv_bias=True),
        _shape("qwen2.5-1.5b", 1536, 28, (12, 2), 8960, 151_936, tied_embeddings=True, qkv_bias=True),
        _shape("qwen2.5-3b", 2048, 36, (16, 2), 11_008, 151_936, tied_embeddings=True, qkv_bias=True),
        _shape("qwen2.5-7b", 3584, 28, (28, 4), 18_944, 152_064, qkv_bias=True),
        _shape("qwen2.5-14b", 5120, 48, (40, 8), 13_824, 152_064, qkv_bias=True),
        _shape("qwen2.5-32b", 5120, 64, (40, 8), 27_648, 152_064, qkv_bias=True),
        _shape("qwen2.5-72b", 8192, 80, (64, 8), 29_568, 152_064, qkv_bias=True),
        _shape("llama-3.1-8b", 4096, 32, (32, 8), 14_336, 128_256),
        _shape("llama-3.1-70b", 8192, 80, (64, 8), 28_672, 128_256),
        _shape("llama-3.2-1b", 2048, 16, (32, 8), 8192, 128_256, tied_embeddings=True),
        _shape("llama-3.2-3b", 3072, 28, (24, 8), 8192, 128_256, tied_embeddings=True),
        _shape("llama-2-7b", 4096, 32, (32, 32), 11_008, 32_000),
        _shape("llama-2-13b", 5120, 40, (40, 40), 13_824, 32_000),
        _shape("llama-2-70b", 8192, 80, (64, 8), 28_672, 32_000),
        _shape("codellama-34b", 8192, 48, (64, 8), 22_016, 32_000),
        _shape("mistral-7b", 4096, 32, (32, 8), 14_336, 32_768),
        _shape("gemma-2-9b", 3584, 42, (16, 8), 14_336, 256_000, head_dim=256, tied_embeddings=True, norms_per_layer=4),
        _shape(
            "gpt2",
            768,
            12,
            (12, 12),
            3072,
            50_257,
            tied_embeddings=True,
            feed_forward_kind="plain",
            norm="layernorm",
            all_biases=True,
            learned_positions=1024,
        ),
    )
}


def _squash(name: str) -> str:
    base = name.rsplit("/", 1)[-1].lower()
    for suffix in ("-instruct", "-it", "-hf", "-base", "-chat", "-v0.3"):
        base = base.removesuffix(suffix)
    return "".join(c for c in base.removeprefix("meta-") if c.isalnum())


def find_shape(name: str) -> ModelShape:
    """The catalogue's shape for a name as hubs spell it (`Qwen/Qwen2.5-7B-Instruct`, `llama-3.1-8b`).

    Raises:
        KeyError: no such model.
    """
    wanted = _squash(name)
    for known, shape in SHAPES.items():
        if _squash(known) == wanted:
            return shape
    raise KeyError(name)
