"""Tokens out of decoders: prompts in chunks, caches of keys and values, sampling. Of flexcomp it needs the runtime alone."""

from flexcomp.generation.draft import Draft, draft_nbytes, load_with_draft
from flexcomp.generation.generator import Generator, Reply
from flexcomp.generation.grammar import GRAMMAR_NBYTES, JSON_OBJECT, Grammar
from flexcomp.generation.pair import Pair, encoder_library
from flexcomp.generation.pooling import Pooling, pooling_files, read_pooling
from flexcomp.generation.sampling import Chance, Sampling
from flexcomp.generation.text import Text, TextReply
from flexcomp.generation.token_bytes import TokenBytes
from flexcomp.generation.tokenizer import FolderTokenizer
from flexcomp.generation.turns import Turn, Turns

__all__ = [
    "GRAMMAR_NBYTES", "JSON_OBJECT", "Chance", "Draft", "FolderTokenizer", "Generator", "Grammar", "Pair", "Pooling", "Reply",
    "Sampling", "Text", "TextReply", "TokenBytes", "Turn", "Turns", "draft_nbytes", "encoder_library", "load_with_draft",
    "pooling_files", "read_pooling",
]  # fmt: skip
