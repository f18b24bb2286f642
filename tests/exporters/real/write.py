"""Writes exports, in an environment of the exporters: `python write.py FOLDER EXPORTER MODEL`.

The environment has torch, transformers, optimum-onnx, onnxscript and onnxruntime-genai; nothing of flexcomp is imported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.cache_utils import DynamicCache, StaticCache

VOCABULARY, WIDTH, LAYERS, HEADS, SHARED, CAPACITY = 320, 128, 2, 4, 2, 256
STATIC = 96  # places of a StaticCache
_GAIN = 4.0  # of random matrices, so that tokens differ
_ALL = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": SHARED, "intermediate_size": 2 * WIDTH, "max_position_embeddings": CAPACITY, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_GPT = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": CAPACITY}
_UNTIED = {"tie_word_embeddings": False}
_NARROW = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}
_SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGURATIONS = {
    "bloom": ("Bloom", {**{key: _GPT[key] for key in ("vocab_size", "n_layer", "n_head")}, "hidden_size": WIDTH, **_UNTIED}),
    "falcon": ("Falcon", {key: _ALL[key] for key in list(_ALL)[:4]}),
    "gemma2": ("Gemma2", {**_ALL, **_NARROW, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "gemma3": ("Gemma3Text", {**_ALL, **_NARROW, "layer_types": ["sliding_attention", "full_attention"]}),
    "gpt2": ("GPT2", _GPT),
    "gptj": ("GPTJ", {**_GPT, "rotary_dim": 16}),
    "gptneox": ("GPTNeoX", {key: value for key, value in _ALL.items() if key != "num_key_value_heads"}),
    "granite": ("Granite", _ALL),
    "llama3": ("Llama", {**_ALL, "rope_theta": 5e5}),
    "llama31": ("Llama", {**_ALL, "rope_scaling": {**_SCALED, "original_max_position_embeddings": 64}}),
    "mistral": ("Mistral", {**_ALL, "sliding_window": 16}),
    "olmo2": ("Olmo2", _ALL),
    "opt": ("OPT", {**_ALL, "ffn_dim": 2 * WIDTH, "word_embed_proj_dim": WIDTH}),
    "phi": ("Phi", _ALL),
    "phi3": ("Phi3", {**_ALL, "original_max_position_embeddings": CAPACITY}),
    "qwen25": ("Qwen2", {**_ALL, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**_ALL, "head_dim": 48}),
    "smollm": ("Llama", {**_ALL, "tie_word_embeddings": True}),
    "stablelm": ("StableLm", _ALL),
}  # fmt: skip


def write_model(folder: Path, name: str) -> None:
    """A model with random weights and a tokenizer of bytes, as transformers saves both."""
    kind, options = CONFIGURATIONS[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(getattr(transformers, f"{kind}Config")(**options)).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in key and "wte" not in key:
                parameter.mul_(_GAIN)
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<pad>", "<s>", "</s>", *letters, *(f"<extra{i}>" for i in range(VOCABULARY - 3 - len(letters)))]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)


class _Growing(torch.nn.Module):
    """A model whose inputs and outputs are the keys and values of each layer, in a DynamicCache."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, past):
        cache = DynamicCache()
        for i, (keys, values) in enumerate(past):
            cache.update(keys, values, i)
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        made = self.model(**given, past_key_values=cache, use_cache=True)
        return made.logits, *(one for layer in cache.layers for one in (layer.keys, layer.values))


class _Static(torch.nn.Module):
    """The same, in a StaticCache."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids, cache_position, past):
        cache = StaticCache(config=self.model.config, max_cache_len=STATIC)
        for layer, (keys, values) in zip(cache.layers, past, strict=True):
            layer.lazy_initialization(keys)
            layer.keys, layer.values = keys, values
        given = {"input_ids": input_ids, "cache_position": cache_position, "position_ids": cache_position[None]}
        made = self.model(**given, past_key_values=cache, use_cache=True)
        return made.logits, *(one for layer in cache.layers for one in (layer.keys, layer.values))


def write_by_torch(model: Path, folder: Path, is_static: bool) -> None:
    """By torch's exporter, over a StaticCache or a DynamicCache."""
    loaded = AutoModelForCausalLM.from_pretrained(model).eval()
    config = loaded.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    depth = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rows, new, any_extent = STATIC if is_static else 6, 3, torch.export.Dim.DYNAMIC
    names = [f"past_key_values.{i}.{part}" for i in range(config.num_hidden_layers) for part in ("key", "value")]
    past = [(torch.zeros(1, heads, rows, depth), torch.zeros(1, heads, rows, depth)) for _ in range(config.num_hidden_layers)]
    ids, places = torch.ones(1, new, dtype=torch.long), torch.arange(6, 6 + new)
    if is_static:
        given = {"input_ids": (ids, {1: any_extent}), "cache_position": (places, {0: any_extent})}
    else:
        mask = torch.ones(1, rows + new, dtype=torch.long)
        given = {"input_ids": (ids, {1: any_extent}), "attention_mask": (mask, {1: any_extent})}
        given["position_ids"] = (places[None], {1: any_extent})
    grows = {} if is_static else {2: any_extent}
    program = torch.onnx.export(
        (_Static if is_static else _Growing)(loaded).eval(), (*(one for one, _ in given.values()), past), dynamo=True,
        dynamic_shapes=(*(extents for _, extents in given.values()), [(grows, grows) for _ in past]), verbose=False,
        input_names=[*given, *names], output_names=["logits", *(name.replace("past_key_values", "present") for name in names)],
    )  # fmt: skip
    folder.mkdir(parents=True)
    program.save(str(folder / "model.onnx"))
    for path in model.glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())


def _run(command: list[str | Path]) -> None:
    """Run an exporter's command, and end with its status if it fails."""
    if status := subprocess.run(command, check=False).returncode:
        sys.exit(status)


def main() -> None:
    """Write one export."""
    folder, exporter, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    model = folder / "models" / name
    if not model.exists():
        write_model(model, name)
    made = folder / f"{exporter}-{name}"
    programs = Path(sys.executable).parent
    match exporter.split("-"):
        case ["optimum"]:
            command = [programs / "optimum-cli", "export", "onnx", "--model", model, "--task", "text-generation-with-past", made]
            _run(command)
        case ["genai", kind]:
            command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", model, "-o", made, "-p", kind, "-e", "cpu"]
            _run([*command, "-c", folder / "cache"])
        case ["torch", "dynamic"]:
            write_by_torch(model, made, is_static=False)
        case ["torch", "static"]:
            write_by_torch(model, made, is_static=True)


if __name__ == "__main__":
    main()
