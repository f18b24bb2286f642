"""Which operators can be compiled."""

from __future__ import annotations

import onnx

from flexcomp.frontend.define import defined
from flexcomp.frontend.domains import DEFAULT, is_converted, title
from flexcomp.frontend.quantised import KINDS


def known_operators() -> list[str]:
    """The names of the operators that can be compiled, in alphabetic order; of other domains than ONNX's with the domain."""
    nodes = [onnx.NodeProto(op_type=s.name) for s in onnx.defs.get_all_schemas() if s.domain in DEFAULT]
    known = {title(node) for node in nodes if is_converted(node)}
    return sorted(known | {title(node) for node in defined()} | {*KINDS})
