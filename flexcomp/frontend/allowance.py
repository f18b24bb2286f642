"""How much larger a build may write a graph.

Branches, loops and functions are written out, and constants are folded. Each of these can be small by itself, and together they
double with every level. So all of them draw from one allowance.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.domains import all_nodes, title

MOST_NODES = 8192  # a chain of so many operators is imported, planned and linked in half a minute
MOST_NBYTES = 64 << 20


@dataclass
class Allowance:
    """What is left of it for one build."""

    nodes: int = MOST_NODES
    nbytes: int = MOST_NBYTES

    def require(self, node: onnx.NodeProto, what: str, nodes: int, nbytes: int) -> None:
        """Raise UnsupportedModelError, which names the node and `what` it becomes, if so much is not left."""
        if nodes <= self.nodes and nbytes <= self.nbytes:
            return
        limit = f"{MOST_NODES} operators" if nodes > self.nodes else f"{MOST_NBYTES >> 20} MiB"
        is_first = (self.nodes, self.nbytes) == (MOST_NODES, MOST_NBYTES)
        raise UnsupportedModelError(
            f"node {node.name or next(filter(None, node.output), '?')!r} ({title(node)}): {what}"
            f"{'' if is_first else ', with all that is written out before,'} are more than the {limit} that branches, loops and "
            "functions of a network may be written out to; export the network for shorter sequences, or without them"
        )

    def take(self, node: onnx.NodeProto, what: str, nodes: int, nbytes: int) -> None:
        """As `require`, and it is gone."""
        self.require(node, what, nodes, nbytes)
        self.nodes -= nodes
        self.nbytes -= nbytes

    def folds(self, nbytes: int) -> bool:
        """Whether there is room for results that are folded; if so, it is gone."""
        fits = nbytes <= self.nbytes
        self.nbytes -= nbytes * fits
        return fits


def count_nodes(graph: onnx.GraphProto) -> int:
    """Nodes of a graph and of the graphs in it."""
    return sum(1 for _ in all_nodes(graph))
