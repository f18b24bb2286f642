"""A camera's loop that gives memory back between its frames: camera.py LIBRARY PICTURE FRAMES."""

import sys

import numpy as np

import flexcomp

library, picture, frames = sys.argv[1:]
with flexcomp.load(library, budget="min") as session:
    for _ in range(int(frames)):
        pixels = np.fromfile(picture, "float32").reshape(session.inputs[0].shape)  # the camera
        session.set_budget("all")
        scores = session(pixels)
        busy = session.resident_arena()
        session.set_budget("min")  # the memory is back when this returns
        print(f"class {scores.argmax()}; {busy} bytes in memory, {session.resident_arena()} until the next frame")
