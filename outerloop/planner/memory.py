"""Peak memory of a layout, on the GPU and on the host, line by line.

Covers weights, gradients, optimizer state, gathered layers, activations, logits, and what CUDA and NCCL take. Not
covered: memory of the data loader, of evaluation loops and of unusual optimizers.

Sources: 16 bytes per parameter and its sharding, Rajbhandari et al. 2019 (arXiv 1910.02054); saved activations of a
GELU block, Korthikanti et al. 2022 (arXiv 2205.05198); NF4 with double quantization, Dettmers et al. 2023 (arXiv
2305.14314); host memory of ZeRO-3 offload, DeepSpeed's own estimator. What a gated block saves is counted tensor by
tensor below and agrees with measured saved tensors (Llama-3.1-8B 49 to 53 bytes per token, hidden unit and layer,
Qwen2.5-7B 63 to 67).

The peak is the larger of two moments of the backward, both with all activations standing: the loss, or the first block.

Frozen on 2026-11-29. FRAGMENTATION was fitted to one figure, torchtitan's 82.4 GiB of Llama 3.1 8B on 8 H100; every
other constant is a count of bytes or a default of the named library. Held out: torchtitan on 128 H100 (67.0 GiB),
torchtune's Llama 2 7B rows.
"""

from __future__ import annotations

from outerloop.planner.arithmetic import GB, Basis, Estimate, Line, short, total
from outerloop.planner.layout import Layout
from outerloop.planner.shapes import ModelShape

NF4_BITS = 4.127
"""Bits per weight of NF4 with double quantization: 4 + 8/64 + 32/(64·256) (QLoRA, section 3)."""

LOGIT_BYTES_MIXED = 10
"""Plain loss in mixed precision: logits 2, fp32 log-probabilities 4, their gradient 4 bytes per token and word."""

LOGIT_BYTES_FP32 = 12
"""Plain loss in fp32: logits 4, log-probabilities 4, their gradient 4."""

LOSS_BACKWARD_BYTES = 4
"""Softmax's backward writes the fp32 gradient of the logits while all of the above still stands."""

CHUNK_TOKENS = 1024
"""Tokens whose logits a chunked loss holds at once. Ours, on the large side of common defaults."""

ACTIVATION_GB_DEFAULT = 2.0
"""Activations of a PyTorch training whose request does not give them: pessimistic for models of a few 100 M."""

CUDA_CONTEXT_GB = 0.6
"""Driver context, cuBLAS and kernels of one process; outside PyTorch's allocator."""

NCCL_GB = 0.5
"""NCCL's buffers and channels in a process group of more than one GPU."""

FRAGMENTATION = 0.05
"""Share of what comes and goes within a step that the caching allocator reserves on top. Fitted (see the header)."""

HOST_FACTOR = 1.5
"""DeepSpeed's estimator: host memory for offload is 1.5 × the state, for pinned buffers and copies."""

ZERO3_LIVE_PARAMETERS = 1e9
"""DeepSpeed's default stage3_max_live_parameters: gathered parameters that stay on the GPU."""

TOLERANCE = 0.15
"""Half width of the memory range: what the estimator promises on published figures."""

STATE_BYTES_ADAMW = 8.0
_STATIC: Basis = "static"
_GIVEN: Basis = "given"
_OPTIMIZER_BYTES = {"adamw": STATE_BYTES_ADAMW, "adamw_8bit": 2.0, "sgd_momentum": 4.0}


def element_bytes(layout: Layout) -> int:
    """Bytes of one activation: 4 in fp32, else 2."""
    return 4 if layout.precision == "fp32" else 2


def optimizer_bytes(layout: Layout) -> float:
    """Optimizer state per trainable parameter. No master copy: the weights themselves are fp32 outside bf16_pure."""
    size = _OPTIMIZER_BYTES[layout.optimizer]
    return size / 2 if layout.precision == "bf16_pure" and layout.optimizer != "adamw_8bit" else size


def weight_bytes(layout: Layout) -> float:
    """Bytes of one trainable weight as the optimizer holds it."""
    return 2.0 if layout.precision == "bf16_pure" else 4.0


def frozen_bytes(layout: Layout) -> float:
    """Bytes of the frozen base under LoRA: NF4 for the linear layers alone, embeddings and head stay 2 bytes."""
    shape = layout.shape
    if shape is None or layout.lora is None:
        return 0.0
    if not layout.quantized:
        return shape.parameters * (4.0 if layout.precision == "fp32" else 2.0)
    linear = shape.layers * shape.linear_parameters_per_layer
    return linear * NF4_BITS / 8 + (shape.parameters - linear) * 2.0


def saved_bytes_per_token_layer(shape: ModelShape, element: int, adapted: tuple[str, ...] | None) -> dict[str, float]:
    """Bytes that autograd keeps per token in one block, with an attention kernel that keeps no score matrix.

    `adapted` None: everything is trained. Otherwise the base is frozen: a linear layer's input is kept only where an
    adapter sits on it (each adapter keeps its own cast copy), and a norm's normalized input is not kept at all.
    """
    h, f, q, kv = shape.hidden, shape.feed_forward, shape.query_width, shape.kv_width
    full = adapted is None
    saved: dict[str, float] = {}
    if shape.norm == "rmsnorm":
        # The reference implementation computes in fp32 and multiplies the cast result by the weight.
        saved["norms"] = shape.norms_per_layer * (4 + (element if full else 0)) * h
    else:
        saved["norms"] = shape.norms_per_layer * element * h
    saved["query, keys, values"] = element * (q + 2 * kv)
    saved["attention output"] = element * q
    if full:
        saved["linear inputs"] = 2 * element * h + element * f
    else:
        widths = [shape.linears[name][0] for name in adapted or () if name in shape.linears]
        saved["adapter inputs"] = element * float(sum(widths))
    saved["feed-forward"] = element * f * (3 if shape.feed_forward_kind == "gated" else 1)
    return saved


def activation_bytes_per_token_layer(layout: Layout) -> float:
    """What one token keeps in one block until its backward, under the layout's checkpointing."""
    shape = layout.shape
    if shape is None:
        return 0.0
    element = element_bytes(layout)
    if layout.checkpointing == "full":
        return float(element * shape.hidden)
    if layout.checkpointing == "selective":
        # Every second matrix product and the attention output are kept, as torchtitan's policy does, plus the input.
        gate = shape.feed_forward
        return float(element * (2 * shape.query_width + shape.kv_width + gate + 2 * shape.hidden))
    adapted = layout.lora.targets if layout.lora else None
    return sum(saved_bytes_per_token_layer(shape, element, adapted).values())


def _weights(layout: Layout) -> list[Line]:
    n, trainable = layout.shard, layout.trainable_parameters
    over = f" / {n}" if n > 1 else ""
    lines = []
    if layout.lora and layout.shape:
        held = frozen_bytes(layout)
        what = f"NF4 {NF4_BITS} bits on linears, 2 B on the rest" if layout.quantized else "frozen base"
        lines.append(("frozen weights", f"{what}: {held / GB:.2f} GB{over}", held / n))
    kind = "adapter " if layout.lora else ""
    for label, size in (
        ("weights", weight_bytes(layout)),
        ("gradients", weight_bytes(layout)),
        ("optimizer state", optimizer_bytes(layout)),
    ):
        lines.append((f"{kind}{label}", f"{size:g} B × {short(trainable)}{over}", size * trainable / n))
    return [Line(label=a, formula=b, value=c / GB, unit="GB") for a, b, c in lines]


def _gathered(layout: Layout) -> list[Line]:
    """What stands unsharded on the GPU at the peak of a sharded layout."""
    shape = layout.shape
    size = 4.0 if layout.precision == "fp32" else 2.0
    if shape is None:
        root = 0.0
        # A model that is one single unit is gathered once, not twice.
        layer_bytes = min(layout.largest_layer, layout.total_parameters / 2) * size
    else:
        layer = float(shape.parameters_per_layer)
        root = float(shape.embedding_parameters + shape.head_parameters)
        linear = shape.linear_parameters_per_layer
        layer_bytes = linear * NF4_BITS / 8 + (layer - linear) * size if layout.quantized else layer * size
    gathered = 2 * layer_bytes + root * size
    formula = f"2 layers × {layer_bytes / GB:.3g} GB + {short(root)} root × {size:g} B"
    if layout.family == "zero3_cpu_offload":
        live = min(ZERO3_LIVE_PARAMETERS, layout.total_parameters) * size
        if live > gathered:
            gathered, formula = live, f"stage3_max_live_parameters {short(live / size)} × {size:g} B"
    return [Line(label="gathered parameters", formula=formula, value=gathered / GB, unit="GB")]


def _unreduced(layout: Layout) -> list[Line]:
    """Gradients of the group in flight, before the reduction shards them."""
    shape = layout.shape
    size = 4.0 if layout.precision == "fp32" else 2.0
    if layout.sharded and not layout.lora:
        layer = layout.largest_layer if shape is None else float(shape.parameters_per_layer)
        head = 0.0 if shape is None else float(shape.head_parameters or shape.embedding_parameters)
        # The gradient of the group in flight stands unsharded twice: as computed, and in fp32 for the reduction.
        widest = max(layer, head)
        text = f"{short(widest)} × ({size:g} + 4) B"
        return [Line(label="unreduced gradients", formula=text, value=widest * (size + 4) / GB, unit="GB")]
    return []


def _replicated_extras(layout: Layout) -> list[Line]:
    lines = []
    if layout.precision in ("bf16", "fp16") and not layout.lora and layout.shape is not None:
        cast = float(layout.shape.matmul_parameters)
        lines.append(
            Line(label="autocast copies", formula=f"2 B × {short(cast)}", value=2 * cast / GB, unit="GB"),
        )
    if layout.family == "ddp" and not layout.gradient_as_bucket_view:
        size = weight_bytes(layout)
        trainable = layout.trainable_parameters
        lines.append(
            Line(
                label="DDP buckets",
                formula=f"{size:g} B × {short(trainable)} (copy of the gradients)",
                value=size * trainable / GB,
                unit="GB",
            )
        )
    return lines


def _activations(layout: Layout) -> list[Line]:
    """What the forward leaves standing for the backward."""
    shape = layout.shape
    if shape is None:
        size, text, basis = ACTIVATION_GB_DEFAULT, "pessimistic default: the request gives none", _STATIC
        if layout.activation_gb is not None:
            size, text, basis = layout.activation_gb, "as given, per micro-step", _GIVEN
        return [Line(label="activations", formula=text, value=size, unit="GB", basis=basis)]
    per_token = activation_bytes_per_token_layer(layout)
    kept = {"none": "saved", "selective": "saved (selective)", "full": "layer inputs"}[layout.checkpointing]
    return [
        Line(
            label="activations",
            formula=f"{short(layout.tokens)} tokens × {shape.layers} layers × {per_token / shape.hidden:.1f} B × "
            f"{shape.hidden} hidden ({kept})",
            value=layout.tokens * shape.layers * per_token / GB,
            unit="GB",
        )
    ]


def _at_the_loss(layout: Layout) -> list[Line]:
    """What stands beside the activations while the loss is differentiated."""
    logits = logits_line(layout)
    if logits is None or layout.shape is None:
        return []
    if layout.loss == "fused":
        return [logits]
    tokens = layout.tokens if layout.loss == "plain" else min(layout.tokens, CHUNK_TOKENS)
    words = layout.shape.vocabulary
    return [
        logits,
        Line(
            label="loss backward",
            formula=f"{short(tokens)} tokens × {short(words)} words × {LOSS_BACKWARD_BYTES} B",
            value=float(tokens) * words * LOSS_BACKWARD_BYTES / GB,
            unit="GB",
        ),
    ]


def _at_the_first_block(layout: Layout) -> list[Line]:
    """What stands beside the activations while the last block, the first of the backward, is differentiated."""
    lines = _unreduced(layout)
    shape = layout.shape
    if shape is None:
        return lines
    tokens, element = layout.tokens, element_bytes(layout)
    if layout.loss == "plain":
        kept = float(tokens) * shape.vocabulary * element
        text = f"{short(tokens)} tokens × {short(shape.vocabulary)} words × {element} B"
        lines.append(Line(label="logits (model output)", formula=text, value=kept / GB, unit="GB"))
    if layout.checkpointing != "none":
        block = sum(saved_bytes_per_token_layer(shape, element, layout.lora.targets if layout.lora else None).values())
        text = f"{short(tokens)} tokens × {short(block)} B"
        lines.append(Line(label="recomputed layer", formula=text, value=tokens * block / GB, unit="GB"))
    # The gradients of the block's widest tensors live next to what was saved.
    wide = 2 * shape.feed_forward + 2 * shape.hidden
    text = f"{short(tokens)} tokens × {element} B × {short(wide)} wide"
    lines.append(Line(label="backward workspace", formula=text, value=tokens * element * wide / GB, unit="GB"))
    return lines


def logits_line(layout: Layout) -> Line | None:
    """Memory of the logits and their gradient under the layout's loss; None without a vocabulary."""
    shape = layout.shape
    if shape is None:
        return None
    per_word = LOGIT_BYTES_FP32 if layout.precision == "fp32" else LOGIT_BYTES_MIXED
    tokens = layout.tokens
    if layout.loss == "fused":
        size = 2.0 * element_bytes(layout) * tokens * shape.hidden
        return Line(
            label="logits (fused loss)",
            formula=f"never whole: 2 × {short(tokens)} tokens × {shape.hidden} hidden",
            value=size / GB,
            unit="GB",
        )
    if layout.loss == "chunked":
        tokens = min(tokens, CHUNK_TOKENS)
    return Line(
        label=f"logits ({layout.loss} loss)",
        formula=f"{short(tokens)} tokens × {short(shape.vocabulary)} words × {per_word} B",
        value=float(tokens) * shape.vocabulary * per_word / GB,
        unit="GB",
    )


def _dequantized(layout: Layout) -> list[Line]:
    if not layout.quantized or layout.shape is None:
        return []
    largest = max(a * b for a, b in layout.shape.linears.values())
    return [
        Line(label="dequantized linear", formula=f"{short(largest)} × 2 B", value=2 * largest / GB, unit="GB"),
    ]


def gpu_memory(layout: Layout) -> Estimate:
    """Peak memory of one GPU, in decimal GB, ±15 %."""
    resident: list[Line] = [] if layout.offload else _weights(layout)
    moving = _gathered(layout) if layout.sharded else _replicated_extras(layout)
    moving += _dequantized(layout)
    moving += _activations(layout)
    # The two moments follow one another; the larger one is the peak.
    moving += max(_at_the_loss(layout), _at_the_first_block(layout), key=total)
    passing = total(moving)
    overhead = [
        Line(
            label="allocator slack",
            formula=f"{FRAGMENTATION:.0%} of {passing:.1f} GB that comes and goes",
            value=FRAGMENTATION * passing,
            unit="GB",
        ),
        Line(label="CUDA context", formula="per process", value=CUDA_CONTEXT_GB, unit="GB"),
    ]
    if layout.workers > 1:
        overhead.append(Line(label="NCCL buffers", formula="per process", value=NCCL_GB, unit="GB"))
    lines = (*resident, *moving, *overhead)
    size = total(lines)
    return Estimate(central=size, low=size * (1 - TOLERANCE), high=size * (1 + TOLERANCE), unit="GB", lines=lines)


def allocator_memory(layout: Layout) -> float:
    """What PyTorch's allocator would report, in GB: the estimate without the CUDA context and NCCL."""
    return total(line for line in gpu_memory(layout).lines if line.label not in ("CUDA context", "NCCL buffers"))


def host_memory(layout: Layout) -> Estimate | None:
    """Host memory that offloading needs on the fullest host, in GB; None without offload.

    Every rank keeps its own shard, so a host holds as many shards as it has ranks, with gradients and optimizer state
    (ZeRO-Offload). For a full fine-tuning on whole hosts this is 16 × P / hosts × 1.5.
    """
    if not layout.offload:
        return None
    trained = weight_bytes(layout) * 2 + optimizer_bytes(layout)
    state = frozen_bytes(layout) + trained * layout.trainable_parameters
    ranks = layout.workers_per_host
    held = state * ranks / layout.workers / GB
    frozen = f"{frozen_bytes(layout) / GB:.1f} GB frozen + " if layout.lora else ""
    shards = f"{ranks} of {layout.workers} shards"
    lines = (
        Line(
            label="offloaded state",
            formula=f"({frozen}{trained:g} B × {short(layout.trainable_parameters)}) × {shards}",
            value=held,
            unit="GB",
        ),
        Line(
            label="pinned buffers", formula=f"{HOST_FACTOR - 1:.0%} on top", value=held * (HOST_FACTOR - 1), unit="GB"
        ),
    )
    size = total(lines)
    return Estimate(central=size, low=held, high=size * (1 + TOLERANCE), unit="GB", lines=lines)
