"""What every pixel of a resized axis is made of: a constant matrix, since shapes are static.

ONNX defines Resize axis by axis: a place of the output has a coordinate in the input, and its value is a weighted sum of the
input's pixels around there. Coordinates are computed in float32, as runtimes do, so that `nearest` takes the same pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")


@dataclass(frozen=True)
class Resampling:
    """How one axis is resized."""

    size: int  # of the input
    resized: int  # of the output
    scale: float  # resized / size, but for rounding
    coordinates: str = "half_pixel"  # one of COORDINATES
    mode: str = "nearest"  # nearest, linear or cubic
    nearest: str = "round_prefer_floor"  # one of NEAREST; simple: down is ceil, up is floor, as before opset 11
    cubic: float = -0.75  # the coefficient a of the cubic kernel
    exclude_outside: bool = False
    antialias: bool = False
    region: tuple[float, float] = (0.0, 1.0)  # of the input, for tf_crop_and_resize

    @property
    def is_identity(self) -> bool:
        return self.size == self.resized and self.scale == 1 and self.coordinates != "tf_crop_and_resize"

    def places(self) -> np.ndarray:
        """float32[resized]: the coordinate in the input of every place of the output."""
        x = np.arange(self.resized, dtype="f4")
        scale, half, one = np.float32(self.scale), np.float32(0.5), np.float32(1)
        if self.coordinates == "asymmetric":
            return x / scale
        if self.coordinates == "align_corners":
            return x * np.float32(self.size - 1) / np.float32(max(self.resized - 1, 1))
        if self.coordinates == "tf_crop_and_resize":
            first, last = np.float32(self.region[0]), np.float32(self.region[1])
            if self.resized == 1:
                return x + half * (first + last) * np.float32(self.size - 1)
            end = np.float32(self.size - 1)
            return first * end + x * (last - first) * end / np.float32(self.resized - 1)
        if self.coordinates == "tf_half_pixel_for_nn":
            return (x + half) / scale
        if self.coordinates == "pytorch_half_pixel" and self.resized == 1:
            return x
        if self.coordinates == "half_pixel_symmetric":
            adjustment = np.float32(self.resized) / (scale * np.float32(self.size))
            return np.float32(self.size) / 2 * (one - adjustment) + (x + half) / scale - half
        return (x + half) / scale - half

    def outside(self) -> np.ndarray:
        """bool[resized]: the places that a region of tf_crop_and_resize has outside of the input."""
        places = self.places()
        outside = (places < 0) | (places > self.size - 1)
        return outside if self.coordinates == "tf_crop_and_resize" else np.zeros_like(outside)

    def nearest_pixels(self) -> np.ndarray:
        """int64[resized]: the pixel that every place takes, for mode nearest."""
        x = self.places()
        half = np.float32(0.5)
        if self.nearest == "simple":
            pixels = np.ceil(x) if self.scale < 1 else np.trunc(x)
        else:
            pixels = {
                "floor": np.floor,
                "ceil": np.ceil,
                "round_prefer_floor": lambda x: np.where(x - np.floor(x) <= half, np.floor(x), np.ceil(x)),
                "round_prefer_ceil": lambda x: np.where(x - np.floor(x) < half, np.floor(x), np.ceil(x)),
            }[self.nearest](x)
        return np.clip(pixels.astype("i8"), 0, self.size - 1)

    def matrix(self) -> np.ndarray:
        """float64[resized, size]: the weights of the input's pixels, for modes linear and cubic; rows add up to 1."""
        kernel, reach = (_hat, 1) if self.mode == "linear" else (lambda x: _cubic(x, self.cubic), 2)
        stretch = min(self.scale, 1.0) if self.antialias else 1.0
        around = int(np.ceil(reach / stretch))
        places = self.places().astype("f8")
        matrix = np.zeros((self.resized, self.size))
        for row, place in enumerate(places):
            pixels = np.arange(np.floor(place) - around, np.floor(place) + around + 2).astype("i8")
            weights = kernel((pixels - place) * stretch)
            if self.exclude_outside:
                weights[(pixels < 0) | (pixels >= self.size)] = 0
            if self.exclude_outside or self.antialias:
                weights /= weights.sum()
            np.add.at(matrix[row], np.clip(pixels, 0, self.size - 1), weights)
        return matrix


def _hat(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), equation 4, for any a."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))
