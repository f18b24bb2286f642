"""Tokens out of decoders: prompts in chunks, caches of keys and values, sampling. Of flexcomp it needs the runtime alone."""

from flexcomp.generation.generator import Generator, Reply
from flexcomp.generation.sampling import Sampling

__all__ = ["Generator", "Reply", "Sampling"]
