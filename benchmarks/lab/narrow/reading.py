"""The text that PP-OCR's two trained networks read on a page."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from benchmarks.networks import trained

Run = Callable[[np.ndarray], np.ndarray]  # a network of one input and one output

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, which PP-OCR's pictures are normalised with
_INK = 0.3  # of the map of a text detector, above which a pixel is text
_LEAST_PIXELS = 40
_LINES = (
    ("The arena holds it all", "weights stream in 1.8 ms", "Budget: 12,345,678", "never slower (R-50)"),
    ("Invoice no. 2024-0817", "3 x espresso  7.50", "Total EUR 41.95", "Thank you very much!"),
    ("Platform 7, 14:35", "to Basel via Freiburg", "Please mind the gap", "Coach 21, seat 56"),
)
_UNCLIPPED = 1.5  # a detector marks the middle of a line: boxes grow by this times area / perimeter



def alphabet(recogniser: onnx.ModelProto) -> list[str]:
    """What the classes of PP-OCR's recogniser are; the first is no letter."""
    (letters,) = [entry.value.splitlines() for entry in recogniser.metadata_props if entry.key == "character"]
    return ["", *letters, " "]


def printed_page(variant: int) -> np.ndarray:
    """A page of dark letters on bright ground, as PP-OCR's detector wants it; each variant is another."""
    from PIL import Image, ImageDraw

    *_, height, width = next(iter(trained.TRAINED["ppocr_det"].shapes.values()))
    image = Image.new("RGB", (width, height), (240, 236, 228))
    draw, font = ImageDraw.Draw(image), trained.font(26 + 2 * variant)
    for row, line in enumerate(_LINES[variant % len(_LINES)]):
        draw.text((24 + 8 * row, 40 + 100 * row), line, fill=(25, 30, 50), font=font)
    pixels = np.asarray(image, np.float32) / 255.0
    return np.ascontiguousarray(((pixels - _MEAN) / _DEVIATION).transpose(2, 0, 1)[None], np.float32)


def read_page(page: np.ndarray, detect: Run, recognise: Run, letters: list[str]) -> list[str]:
    """The lines of text on a picture for PP-OCR's detector, from top to bottom."""
    pixels = (page[0].transpose(1, 2, 0) * _DEVIATION + _MEAN).clip(0, 1)
    return [read_line(_as_line(pixels[box]), recognise, letters) for box in _text_boxes(detect(page)[0, 0])]


def read_line(line: np.ndarray, recognise: Run, letters: list[str]) -> str:
    """The text of a picture for PP-OCR's recogniser: the likeliest classes, repeated ones once."""
    classes = recognise(line)[0].argmax(axis=1)
    first = np.concatenate([[True], classes[1:] != classes[:-1]])
    return "".join(letters[index] for index in classes[first])


def _text_boxes(ink: np.ndarray) -> list[tuple[slice, slice]]:
    """Connected pixels of a detector's map, as boxes, from top to bottom."""
    left = set(map(tuple, np.argwhere(ink > _INK).tolist()))
    boxes = []
    while left:
        reached = [left.pop()]
        for row, column in reached:
            for other in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                if other in left:
                    left.remove(other)
                    reached.append(other)
        if len(reached) >= _LEAST_PIXELS:
            (top, first), (bottom, last) = np.min(reached, axis=0), np.max(reached, axis=0) + 1
            height, width = bottom - top, last - first
            more = int(_UNCLIPPED * height * width / (2 * (height + width)))
            boxes.append((slice(max(top - more, 0), bottom + more), slice(max(first - more, 0), last + more)))
    return sorted(boxes, key=lambda box: (box[0].start, box[1].start))


def _as_line(pixels: np.ndarray) -> np.ndarray:
    """A part of a picture, 0 to 1, as the recogniser wants it: as high as its input, -1 to 1, and 0 behind the end."""
    from PIL import Image

    _, _, height, width = next(iter(trained.TRAINED["ppocr_rec"].shapes.values()))
    wide = min(width, max(1, round(pixels.shape[1] * height / pixels.shape[0])))
    image = Image.fromarray((pixels * 255).astype(np.uint8)).resize((wide, height), Image.Resampling.BILINEAR)
    line = np.zeros((1, 3, height, width), np.float32)
    line[0, :, :, :wide] = (np.asarray(image, np.float32) / 127.5 - 1).transpose(2, 0, 1)
    return line
