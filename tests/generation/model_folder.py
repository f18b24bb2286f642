"""A model folder as hubs lay it out: a decoder with dynamic axes, and a tokenizer of as many tokens."""

import json
from pathlib import Path

import onnx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.exporters.genai import VOCABULARY, Form, decoder

END = "<end>"
_LETTERS = "Ġabcdefghijklmnopqrstuvwxyz:,.{}[]\"01ÃðŁĺĢ¤©¼¶ĊÄ±"  # as ByteLevel writes bytes
_TEMPLATE = (
    "{% for one in messages %}{{ one.role }}:{{ one.content }}{{ eos_token }}{% endfor %}"
    "{{ 'a:' if add_generation_prompt }}"
)


def write(folder: Path) -> None:
    """The text side. Tokens are bytes, and a few pairs: most characters outside of ASCII are several tokens."""
    letters = sorted(set(pre_tokenizers.ByteLevel.alphabet()) & set(_LETTERS))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    options = {"vocab_size": VOCABULARY, "initial_alphabet": letters, "special_tokens": [END], "show_progress": False}
    tokenizer.train_from_iterator(["the cat"], trainers.BpeTrainer(**options))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": {"content": END}, "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_model(folder: Path, form: Form, name: str = "model.onnx") -> Path:
    """All of it, in the form of a hub's cache: links lead to the decoder and to its weights. Returns the folder of links."""
    model = decoder(form, None)
    for port in (*model.graph.input, *model.graph.output):
        extents = port.type.tensor_type.shape.dim
        extents[0].dim_param = "batch_size"
        if len(extents) == 4:
            extents[2].dim_param = "total_sequence_length" if port.name.startswith("present") else "past_sequence_length"
        elif port.name == "attention_mask":
            extents[1].dim_param = "total_sequence_length"
    snapshot, blobs = folder / "snapshots" / "0123abcd", folder / "blobs"
    for one in (snapshot, blobs):
        one.mkdir(parents=True, exist_ok=True)
    data = f"{name}_data"
    onnx.save(model, blobs / name, save_as_external_data=True, location=data, size_threshold=0)
    (blobs / data).rename(blobs / "f00d")
    (blobs / name).rename(blobs / "cafe")
    for link, target in ((name, "cafe"), (data, "f00d")):
        (snapshot / link).unlink(missing_ok=True)
        (snapshot / link).symlink_to(Path("../../blobs") / target)
    (snapshot / "config.json").write_text(json.dumps({"max_position_embeddings": form.capacity, "vocab_size": VOCABULARY}))
    (snapshot / "generation_config.json").write_text(json.dumps({"eos_token_id": [0]}))
    write(snapshot)
    return snapshot
