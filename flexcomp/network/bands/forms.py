"""Forms of a network in bands of rows, for budgets below the memory of its largest layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flexcomp import plan
from flexcomp.device import DeviceProfile

from ..forms import Planning, costs_of, form_of
from ..variants import Network
from .choose import Split, splits
from .kernels import other_kernels
from .split import BandBook


def in_bands(planning: Planning, profile: DeviceProfile, threads: int) -> Planning:
    """The same planning with forms in bands of rows that need less memory than all whole ones, if there are any.

    Every split is offered with the smallest kernels, and with those of the largest choice of alternatives outside
    its regions that stay within its peak.
    """
    smallest = planning.whole[0]
    network = planning.network
    found = splits(network.base, smallest.problem, lambda work, nbytes: profile.seconds(work, nbytes, threads))
    if not found:
        return planning
    book = BandBook(network.base)
    orders = [_order(network, book, split, choice) for split in found for choice in _choices(planning, split)]
    others = list(other_kernels(network.base, network.alternatives, book.bands))
    network = replace(
        network,
        bands=(*book.bands, *(band for band, _ in others)),
        band_values=tuple(book.values),
        band_kernels=book.kernels | {band.layer.kernel: kernel for band, kernel in others},
    )
    costs = costs_of(network, profile, threads)
    forms = [form_of(network, order, costs) for order in dict.fromkeys(orders)]
    minimum = plan.minimum_budget(smallest.problem).nbytes
    needs = {form: plan.minimum_budget(form.problem).nbytes for form in forms}
    useful = sorted((form for form in forms if needs[form] < minimum), key=needs.__getitem__)
    return Planning(network, costs, planning.whole, tuple(useful))


def _choices(planning: Planning, split: Split) -> list[Sequence[int]]:
    """Kernels of the whole layers: the smallest, and the fastest that stay within the split's peak."""
    smallest = planning.whole[0].layers
    fitting = list(smallest)
    for form in planning.whole[1:]:
        for position, need in enumerate(plan.layer_bounds(form.problem)):
            if need <= split.peak:
                fitting[position] = form.layers[position]
    return [smallest, fitting]


def _order(network: Network, book: BandBook, split: Split, kernels: Sequence[int]) -> tuple[int, ...]:
    """The layers of the split network as indices into Network.layers with the book's bands."""
    first_band = len(network.base.layers) + len(network.alternatives)
    order: list[int] = []
    at = 0
    for region in split.regions:
        order += kernels[at : region.start]
        order += [first_band + band for band in book.add(region)]
        at = region.stop
    return (*order, *kernels[at:])
