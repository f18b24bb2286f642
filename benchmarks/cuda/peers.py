"""PyTorch on a GPU: a program of its own, for an interpreter that has torch and torchvision; prints JSON.

    python benchmarks/cuda/peers.py resnet50 --repeat 50

Float32 without TF32, cuDNN's fastest algorithms; a picture goes from the host's memory to the GPU, and the result back, in every
inference, as for the others. "eager" is the module as it is called, "graph" a CUDA graph of that, and "offload" accelerate's
cpu_offload: weights in the host's memory, copied layer by layer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torchvision

WARM_UP = 5


def milliseconds(call: Callable[[], object], repeat: int) -> list[float]:
    """Of so many calls, after a few others."""
    for _ in range(WARM_UP):
        call()
    taken = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - start))
    return taken


def graphed(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """An inference as a CUDA graph."""
    place = x.cuda()
    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        for _ in range(WARM_UP):
            model(place)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(place)

    def call() -> torch.Tensor:
        place.copy_(x, non_blocking=True)
        graph.replay()
        return result.cpu()

    return call


def measured(name: str, repeat: int) -> dict[str, list[float] | str]:
    """Milliseconds of inferences by the way they are made, or why there are none."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.get_model(name, weights=None).eval()
    x = torch.randn(1, 3, 224, 224).pin_memory()
    found: dict[str, list[float] | str] = {}
    with torch.inference_mode():
        try:
            from accelerate import cpu_offload

            offloaded = cpu_offload(torchvision.models.get_model(name, weights=None).eval(), execution_device=0)
            found["offload"] = milliseconds(lambda: offloaded(x.cuda(non_blocking=True)).cpu(), max(3, repeat // 10))
        except ImportError as error:
            found["offload"] = str(error)
        model = model.cuda()
        found["eager"] = milliseconds(lambda: model(x.cuda(non_blocking=True)).cpu(), repeat)
        found["graph"] = milliseconds(graphed(model, x), repeat)
    return found


def main() -> None:
    """Measure one of torchvision's networks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name")
    parser.add_argument("--repeat", type=int, default=50)
    args = parser.parse_args()
    found = measured(args.name, args.repeat)
    medians = {key: value if isinstance(value, str) else statistics.median(value) for key, value in found.items()}
    print(json.dumps({"torch": torch.__version__, "milliseconds": medians}))


if __name__ == "__main__":
    main()
