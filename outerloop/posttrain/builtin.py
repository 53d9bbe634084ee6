"""Models and suites that need no hub: a tiny Llama with a tokenizer of its own, made on the spot, and sums in words.

Covered: `builtin:tiny-llama` and `builtin:sums`. The same torch and transformers give the same bytes. Not covered:
anything worth using.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from outerloop.posttrain import sums

__all__ = ["MODELS", "SUITES", "make_tiny_llama"]

MODELS = ("tiny-llama",)
SUITES = ("sums",)

_SEED = 0
_VOCABULARY = 512
_INITIALIZER_RANGE = 0.1
"""At transformers' 0.02 so narrow a model learns the sums far more slowly (measured, share of held-out sums: 0.92 after
120 steps at 0.1, 0.07 after 160 at 0.02)."""
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\n' }}"
    "{%- if message['role'] == 'assistant' %}"
    "{% generation %}{{- message['content'] + '<|im_end|>' }}{% endgeneration %}{{- '\n' }}"
    "{%- else %}{{- message['content'] + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""ChatML. The generation block is what trl's assistant_only_loss looks for."""


def make_tiny_llama(folder: Path) -> None:
    """Two layers of width 128 with random weights, about 0.4 M parameters, as a folder that transformers loads.

    Heads are 32 wide, which vLLM's CPU attention takes too. The folder appears when it is whole.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    corpus = [text for row in sums.rows("training") for text in (row["prompt"], row["answer"])]
    corpus += ["user assistant system tool"] * 10
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=_VOCABULARY,
            special_tokens=list(_SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=_SPECIAL[2],
        pad_token=_SPECIAL[0],
        model_max_length=512,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHAT
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=_INITIALIZER_RANGE,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)
