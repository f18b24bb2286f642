"""A model folder as hubs lay it out, without the model: a tokenizer of as many tokens as the decoder of tests/exporters has."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.exporters.genai import VOCABULARY

END = "<end>"
_LETTERS = "Ġabcdefghijklmnopqrstuvwxyz:,.ÃðŁĺĢ¤©¼¶ĊÄ±"  # as ByteLevel writes bytes
_TEMPLATE = (
    "{% for one in messages %}{{ one.role }}:{{ one.content }}{{ eos_token }}{% endfor %}"
    "{{ 'a:' if add_generation_prompt }}"
)


def write(folder: Path) -> None:
    """Tokens are bytes, and a few pairs: most characters outside of ASCII are several tokens."""
    letters = sorted(set(pre_tokenizers.ByteLevel.alphabet()) & set(_LETTERS))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    options = {"vocab_size": VOCABULARY, "initial_alphabet": letters, "special_tokens": [END], "show_progress": False}
    tokenizer.train_from_iterator(["the cat"], trainers.BpeTrainer(**options))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": {"content": END}, "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
