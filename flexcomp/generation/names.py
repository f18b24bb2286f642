"""Names of a decoder's inputs and outputs, by what exporters mean by them."""

from __future__ import annotations

IDS = ("input_ids", "ids", "tokens")
MASKS = ("attention_mask", "mask")
PLACES = ("position_ids", "positions")  # one for each token
STARTS = ("cache_position", "past_length", "start", "at")  # of the first token, or one for each
LOGITS = "logits"
ENCODED = "encoder_"  # begins inputs that follow from what an encoder made
HIDDEN = "encoder_hidden_states"  # of the decoder: the encoder's result
MASK_OF_ENCODED = "encoder_attention_mask"  # of the decoder: which rows of that are a text's
CROSS = ".encoder."  # in names of caches: keys and values of the encoder's result
FEATURES = "input_features"  # of an encoder of sound
TYPES = ("token_type_ids", "segment_ids")  # of an encoder: which of two texts; 0 for the first
POOLED, ROWS = ("sentence_embedding",), ("last_hidden_state", "token_embeddings")  # outputs of an encoder
# How names of caches begin before an inference and after it; the rest is the same.
CACHES = (("past_key_values", "present"), ("past_key_values", "present_key_values"), ("past", "present"))
