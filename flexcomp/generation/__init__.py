"""Tokens out of decoders: prompts in chunks, caches of keys and values, sampling. Of flexcomp it needs the runtime alone."""

from flexcomp.generation.generator import Generator, Reply
from flexcomp.generation.pooling import Pooling, read_pooling
from flexcomp.generation.sampling import Sampling
from flexcomp.generation.text import Text, TextReply
from flexcomp.generation.tokenizer import FolderTokenizer
from flexcomp.generation.turns import Turn, Turns

__all__ = ["FolderTokenizer", "Generator", "Pooling", "Reply", "Sampling", "Text", "TextReply", "Turn", "Turns", "read_pooling"]
