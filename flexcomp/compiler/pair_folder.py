"""An encoder-decoder's folder: which files are the encoder and the decoder, and what the encoder's library is built of.

    encoder_model.onnx, decoder_model_merged.onnx                              as optimum writes them,
    encoder_model.onnx, decoder_model.onnx, decoder_with_past_model.onnx       with one suffix for all, such as _quantized
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexcomp.errors import InputError
from flexcomp.frontend import EncoderFiles, ports_in
from flexcomp.generation.names import CROSS, FEATURES, HIDDEN, IDS, MASK_OF_ENCODED, MASKS, ROWS

from .encoder_folder import encoder_shapes, is_encoder

_ENCODER, _MERGED, _WITH_PAST, _FIRST = "encoder_model", "decoder_model_merged", "decoder_with_past_model", "decoder_model"
_FRAMES = 2  # of features for each row of Whisper's encoder

Extents = tuple[int | None, ...]


@dataclass(frozen=True)
class PairFiles:
    """Paths of an encoder-decoder's networks."""

    encoder: Path
    decoder: Path  # with caches
    first: Path  # without, or merged


@dataclass(frozen=True)
class EncoderPart:
    """Arguments of `build`, by name, for the library of the encoder."""

    model: EncoderFiles
    input_shapes: Mapping[str, tuple[int | str, ...]]
    shapes: Mapping[str, list[int]]
    pad: Mapping[str, int]
    rows: int  # of the encoder's result, at most


def find_pair(folder: Path, onnx: str | None) -> PairFiles | None:
    """The files of an encoder-decoder, one of which may be named by `onnx`; None if there is no encoder.

    Of a merged decoder and two others the merged one counts, unless another is named. Raises InputError.
    """
    for place, suffix, named in _places(folder, onnx):
        encoder, merged, with_past, first = (
            place / f"{name}{suffix}.onnx" for name in (_ENCODER, _MERGED, _WITH_PAST, _FIRST)
        )
        if not encoder.is_file():
            continue
        if merged.is_file() and named not in (_WITH_PAST, _FIRST):
            return PairFiles(encoder, merged, merged)
        if with_past.is_file() and first.is_file():
            return PairFiles(encoder, with_past, first)
        raise InputError(
            f"{encoder} has no decoder with caches next to it: {merged.name}, or {first.name} and {with_past.name}, is needed; "
            "export the model again, with caches (optimum: --task …-with-past)"
        )
    return None


def _places(folder: Path, onnx: str | None) -> Iterator[tuple[Path, str, str]]:
    """Folders, the suffixes of the files' names, and which file was named."""
    if onnx is None:
        yield from ((folder, "", ""), (folder / "onnx", "", ""))
        return
    path = folder / onnx
    for name in (_ENCODER, _MERGED, _WITH_PAST, _FIRST):
        if path.stem.startswith(name) and (name != _FIRST or not path.stem.startswith(_MERGED)):
            yield path.parent, path.stem[len(name) :], name
            return


def is_cross(name: str) -> bool:
    """Whether a cache of the decoder is for the encoder's result."""
    return CROSS in name


def encoder_part(
    files: PairFiles, needs: Collection[str], caches: Collection[str], settings: Mapping[str, Any], longest: int, pad: int,
    tokens: str,
) -> EncoderPart:  # fmt: skip
    """Of the decoder `needs` are inputs, `caches` among them; texts have up to `longest` tokens. Raises InputError."""
    inputs, outputs = ports_in(files.encoder)
    made = next((name for name in outputs if name in ROWS), None)
    if made is None:
        raise InputError(f"{files.encoder} has outputs {', '.join(outputs)} and none of {', '.join(ROWS)}: it is no encoder")
    mask = next((name for name in inputs if name in MASKS), "")
    given = {HIDDEN: made} | ({f"encoder_{mask}": mask} if mask else {})
    crossing = {name.replace("past_key_values", "present", 1): name for name in caches if is_cross(name)}
    crossing |= {HIDDEN: HIDDEN} if HIDDEN in needs else {}
    model = EncoderFiles(files.encoder, files.first, given, crossing, tuple(caches))
    if list(inputs) == [FEATURES]:
        rows = settings.get("max_source_positions")
        frames = _FRAMES * rows if isinstance(rows, int) else None
        wanted = (1, settings.get("num_mel_bins"), frames)
        extents = tuple(one or other for one, other in zip(inputs[FEATURES], wanted, strict=True))
        if not all(isinstance(one, int) for one in extents):
            raise InputError(
                f"{files.encoder}: the extents of {FEATURES!r} are not known: config.json has no num_mel_bins and "
                "max_source_positions"
            )
        return EncoderPart(model, {FEATURES: extents}, {}, {}, extents[2] // _FRAMES)
    if not is_encoder(inputs, outputs) or not any(name in IDS for name in inputs):
        raise InputError(
            f"{files.encoder} has inputs {', '.join(inputs)}: encoders of tokens (input_ids) and of {FEATURES} are understood"
        )
    if MASK_OF_ENCODED not in needs:
        raise InputError(
            f"{files.decoder} has no input {MASK_OF_ENCODED}, which says how long an encoded text is: export it with one"
        )
    return EncoderPart(model, *encoder_shapes(inputs, longest, pad, tokens), longest)
