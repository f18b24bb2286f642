"""FlexNN's choice of kernels: a fixed order, of which every layer takes the first that fits the memory.

Li et al., "FlexNN: Efficient and Adaptive DNN Inference on Memory-Constrained Edge Devices" (MobiCom 2024), section
3.2: Winograd with weights slicing; if that does not meet the memory constraint, im2col and GEMM with input slicing;
if that does not either, the direct kernel. Latency is not predicted, and weights have no price: the baseline
for `kernel_sets.planning`.
"""

from __future__ import annotations

from flexcomp import plan
from flexcomp.device import DeviceProfile

from .forms import Planning, costs_of, planning_of
from .variants import Choice, Network


def planning(network: Network, profile: DeviceProfile, threads: int) -> Planning:
    """The problems that limits of memory lead to, from the direct kernels alone to the first choice everywhere.

    The alternatives of `network` are those of the lowerings in KERNELS["flexnn"]. The memory that a layer needs is counted after
    slicing: live values, the scratch, and one block of weights.
    """
    costs = costs_of(network, profile, threads)
    first = [frozenset({index}) for index in range(len(network.alternatives))]
    single = planning_of(network, first, costs).whole
    needs = [
        plan.layer_bounds(form.problem)[alternative.base]
        for form, alternative in zip(single, network.alternatives, strict=True)
    ]
    choices: list[Choice] = [frozenset()]
    for limit in sorted(set(needs)):
        taken = {network.alternatives[i].base: i for i, need in enumerate(needs) if need <= limit}  # later ones win
        choices.append(frozenset(taken.values()))
    return planning_of(network, choices, costs, fixed_order=True)
