"""The bound on how much larger a build may make a graph.

Branches, loops and functions are written out, and constants are folded. Each step may be small, but nested steps double with
every level. So all of them draw from one allowance.
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
    """The nodes and bytes that are left for one build."""

    nodes: int = MOST_NODES
    nbytes: int = MOST_NBYTES

    def require(self, node: onnx.NodeProto, what: str, nodes: int, nbytes: int) -> None:
        """Raise UnsupportedModelError if less than this is left; the error names the node and `what` the node becomes."""
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
        """As `require`, and take the amount from the allowance."""
        self.require(node, what, nodes, nbytes)
        self.nodes -= nodes
        self.nbytes -= nbytes

    def folds(self, nbytes: int) -> bool:
        """Whether the allowance has room for folded results; if so, take it."""
        fits = nbytes <= self.nbytes
        self.nbytes -= nbytes * fits
        return fits


def count_nodes(graph: onnx.GraphProto) -> int:
    """The number of nodes of a graph and its inner graphs."""
    return sum(1 for _ in all_nodes(graph))
