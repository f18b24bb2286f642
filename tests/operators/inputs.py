"""Random inputs."""

import numpy as np
import onnxruntime


def inputs_of(session: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        i.name: rng.standard_normal(i.shape).astype("f4") if i.type == "tensor(float)" else rng.integers(0, 5, i.shape)
        for i in session.get_inputs()
    }
