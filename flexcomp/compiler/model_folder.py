"""A decoder's folder, as hubs lay it out, becomes the arguments of a build, and files for text that go next to the library."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexcomp.errors import InputError
from flexcomp.files import replacing
from flexcomp.frontend import ports_in
from flexcomp.generation import FolderTokenizer, encoder_library
from flexcomp.generation.names import CACHES, ENCODED, IDS, LOGITS, MASKS, PLACES, STARTS
from flexcomp.generation.pooling import pooling_files
from flexcomp.generation.tokenizer import CONFIG, FILES, GENAI, TOKENIZER, read_object

from .encoder_folder import encoder_shapes, is_encoder
from .known import CONTEXT
from .pair_folder import EncoderPart, encoder_part, find_pair, is_cross

SENTENCES, TOKENIZER_SETTINGS = "sentence_bert_config.json", "tokenizer_config.json"
TOKENS = "tokens"  # the name of the extent that shapes differ in
_CHUNKS = (16, 128)  # tokens of a prompt that are taken at once
_MOST_LOGITS_NBYTES = 32 << 20  # of a chunk
_LENGTHS = (  # keys of settings
    "max_seq_length", "model_max_length", "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length",
    "max_target_positions",
)  # fmt: skip

Extents = tuple[int | None, ...]


@dataclass(frozen=True)
class ModelFolder:
    """Arguments of `build`, by name, and the files for text."""

    folder: Path
    model: Path
    input_shapes: Mapping[str, tuple[int | str, ...]]
    shapes: Mapping[str, list[int]]
    state: Mapping[str, str]
    pad: Mapping[str, int]
    texts: tuple[str, ...]  # below the folder
    encoder: EncoderPart | None = None  # of an encoder-decoder

    def libraries(self, output: Path) -> list[Path]:
        """The library to write, and the encoder's next to it if there is one."""
        return [output] if self.encoder is None else [output, encoder_library(output)]

    def require_room_for_texts(self, folder: Path) -> None:
        """Raise InputError if another model's files lie in `folder`."""
        for path, there in self._copies(folder):
            if there.exists() and not there.samefile(path) and there.read_bytes() != path.read_bytes():
                raise InputError(
                    f"{there} differs from {path}: write the library into a folder of its own, or remove the file there"
                )

    def copy_texts(self, folder: Path) -> None:
        """Write the files for text into `folder`."""
        for path, there in self._copies(folder):
            if not there.exists() or not there.samefile(path):
                there.parent.mkdir(exist_ok=True)
                with replacing(there) as copy:
                    shutil.copyfile(path, copy)

    def _copies(self, folder: Path) -> Iterator[tuple[Path, Path]]:
        return ((self.folder / name, folder / name) for name in self.texts)


def read_model_folder(folder: Path, onnx: str | None = None, context: int | None = None) -> ModelFolder:
    """The decoder, encoder or both in `folder`, of which `onnx` is a file if there are several, with caches for `context` tokens.

    By default caches have as many places as the model was made for, CONTEXT at most; an encoder takes texts of so many tokens.
    Raises InputError, ModelError.
    """
    if not (folder / TOKENIZER).exists():
        other = "tokenizer.model" if (folder / "tokenizer.model").exists() else "no tokenizer"
        raise InputError(
            f"{folder} has {other}, and {TOKENIZER} is needed: save the model's fast tokenizer there "
            "(AutoTokenizer.save_pretrained), or name the .onnx file for a network without text"
        )
    tokenizer = FolderTokenizer(folder)
    genai = read_object(folder / GENAI).get("model")
    settings = {**read_object(folder / CONFIG), **read_object(folder / SENTENCES), **(genai if isinstance(genai, dict) else {})}
    pair = find_pair(folder, onnx)
    model = _model_file(folder, onnx, settings) if pair is None else pair.decoder
    inputs, outputs = ports_in(model, _named_as_caches)
    texts = tuple(name for name in FILES if (folder / name).exists())
    if pair is None and is_encoder(inputs, outputs):
        longest = _longest({**settings, **read_object(folder / TOKENIZER_SETTINGS)}, context, model)
        shapes, lengths, pad = encoder_shapes(inputs, longest, _whole(settings, "pad_token_id") or 0, TOKENS)
        return ModelFolder(folder, model, shapes, lengths, {}, pad, (*texts, *pooling_files(folder)))
    vocabulary = _vocabulary(outputs, settings, model)
    if vocabulary is not None:
        tokenizer.require_within(vocabulary)
    state = _caches(inputs, outputs, model, pair is not None)
    places = _places(inputs, state, settings, context, model)
    if pair is not None:
        longest = _longest({**settings, **read_object(folder / TOKENIZER_SETTINGS)}, context, model)
        pad = _whole(settings, "pad_token_id") or 0
        part = encoder_part(pair, inputs, list(state.values()), settings, longest, pad, TOKENS)
        return _pair(folder, model, inputs, state, places, part, texts)
    chunks = _chunks(places, vocabulary)
    shapes = {name: _shape(name, extents, places, state, model) for name, extents in inputs.items()}
    return ModelFolder(
        folder=folder,
        model=model,
        input_shapes=shapes,
        shapes={TOKENS: chunks} if any(TOKENS in shape for shape in shapes.values()) else {},
        state=state,
        pad={},
        texts=texts,
    )


def _pair(
    folder: Path, model: Path, inputs: Mapping[str, Extents], state: Mapping[str, str], places: int, part: EncoderPart,
    texts: tuple[str, ...],
) -> ModelFolder:  # fmt: skip
    """An encoder-decoder. The decoder takes single tokens: exports with caches say nothing of several at once."""
    shapes: dict[str, tuple[int | str, ...]] = {}
    for name, extents in inputs.items():
        rows = is_cross(name) or name.startswith(ENCODED)
        found = _shape(name, extents, part.rows if rows else places, state, model)
        shapes[name] = tuple(1 if one == TOKENS else one for one in found)
    return ModelFolder(folder, model, shapes, {}, state, {}, texts, part)


def _named_as_caches(inputs: Collection[str]) -> list[str]:
    return [name for name in inputs if any(True for _ in _following(name))]


def _model_file(folder: Path, onnx: str | None, settings: Mapping[str, Any]) -> Path:
    found = [path.relative_to(folder) for below in (folder, folder / "onnx") for path in sorted(below.glob("*.onnx"))]
    if onnx is not None:
        if not (folder / onnx).is_file():
            raise InputError(f"{folder} has no file {onnx}: there is {', '.join(map(str, found)) or 'no .onnx file'}")
        return folder / onnx
    decoder = settings.get("decoder")
    named = decoder.get("filename") if isinstance(decoder, dict) else None
    if isinstance(named, str) and (folder / named).is_file():
        return folder / named
    if not found:
        raise InputError(f"{folder} has no .onnx file, nor has {folder / 'onnx'}: export the model to ONNX")
    if len(found) > 1:
        raise InputError(f"{folder} has several models, {', '.join(map(str, found))}: choose one with --onnx {found[0]}")
    return folder / found[0]


def _vocabulary(outputs: Mapping[str, Extents], settings: Mapping[str, Any], model: Path) -> int | None:
    """The number of tokens that the model knows; None if nothing says so."""
    if LOGITS not in outputs:
        raise InputError(f"{model} has outputs {', '.join(outputs)} and none named {LOGITS}: it is no decoder")
    return (outputs[LOGITS] or (None,))[-1] or _whole(settings, "vocab_size")


def _whole(settings: Mapping[str, Any], *keys: str) -> int | None:
    """The least of these settings that are numbers, also of a part for text."""
    part = settings.get("text_config")
    given = [found.get(key) for found in (settings, part if isinstance(part, dict) else {}) for key in keys]
    return min((number for number in given if isinstance(number, int) and number > 0), default=None)


def _caches(inputs: Mapping[str, Extents], outputs: Mapping[str, Extents], model: Path, has_encoder: bool) -> dict[str, str]:
    """Inputs by the outputs that take their places in the next inference; those for an encoder's result by themselves."""
    state: dict[str, str] = {}
    known = (*IDS, *MASKS, *PLACES, *STARTS)
    for name in inputs:
        if name in known or (has_encoder and name.startswith(ENCODED)):
            continue
        if has_encoder and is_cross(name):
            state[name] = name
            continue
        following = [output for output in _following(name) if output in outputs]
        if not following:
            raise InputError(
                f"{model}: no output follows the input {name!r} as present.0.key follows past_key_values.0.key: export the "
                "decoder with caches, or name the .onnx file, with --input and --state for its inputs"
            )
        state[following[0]] = name
    if not state:
        raise InputError(f"{model} has no caches among its inputs {', '.join(inputs)}: export the decoder with caches")
    return state


def _following(cache: str) -> Iterator[str]:
    """Names that the output after an input for a cache may have."""
    for before, after in CACHES:
        if cache.startswith(before):
            yield after + cache[len(before) :]


def _places(
    inputs: Mapping[str, Extents], state: Mapping[str, str], settings: Mapping[str, Any], context: int | None, model: Path
) -> int:
    """How many tokens caches hold."""
    fixed = {inputs[name][2] for made, name in state.items() if len(inputs[name]) == 4 and made != name} - {None}
    if fixed:
        (places, *others) = sorted(fixed)
        if others or context not in (None, places):
            raise InputError(f"{model} has caches of {', '.join(map(str, sorted(fixed)))} places: export it for another context")
        return places
    return _longest(settings, context, model)


def _longest(settings: Mapping[str, Any], context: int | None, model: Path) -> int:
    """How many tokens a text may have."""
    most = _whole(settings, *_LENGTHS)
    if context is not None and most is not None and context > most:
        raise InputError(f"a context of {context} tokens is more than the {most} that {model} was made for")
    return context or min(CONTEXT, most or CONTEXT)


def _chunks(places: int, vocabulary: int | None) -> list[int]:
    logits_nbytes = 4 * (vocabulary or 0)
    return [1, *(size for size in _CHUNKS if size <= places and size * logits_nbytes <= _MOST_LOGITS_NBYTES)]


def _shape(name: str, extents: Extents, places: int, state: Mapping[str, str], model: Path) -> tuple[int | str, ...]:
    """The extents of an input, of one sequence."""
    if name in state.values():
        dynamic = (1, None, places, None) if len(extents) == 4 else (1, *[None] * (len(extents) - 1))
    elif name.startswith(ENCODED):
        dynamic = (1, places, None)[: len(extents)]
    else:
        dynamic = (*[1] * (len(extents) - 1), places if name in MASKS else TOKENS)[-len(extents) or 1 :]
    found = tuple(given or chosen for given, chosen in zip(extents, dynamic, strict=True))
    if None in found:
        raise InputError(f"{model}: axis {found.index(None)} of {name!r} has no extent: export the decoder for fixed heads")
    return found
