"""Which kernels were on offer for every layer of a network, for the record in the library."""

from __future__ import annotations

from flexcomp.device import DeviceProfile
from flexcomp.passes.attributes import CANDIDATES
from flexcomp.program import Offer, ValueArg, worth_recording

from .forms import layer_seconds
from .variants import Network


def layer_offers(network: Network, profile: DeviceProfile, threads: int) -> dict[str, list[Offer]]:
    """By the name of every layer, alternative and band: what could compute it; of bands there is one kind only."""
    held: dict[int, dict[str, Offer]] = {}  # by layer and kernel: what the network holds, also what a tuner found
    layers = network.layers
    whole = range(len(layers) - len(network.bands))
    seconds = layer_seconds(network, profile, threads)
    for index in whole:
        layer = layers[index]
        offer = Offer(layer.implementation, seconds[index], layer.scratch_nbytes, layer.weights.nbytes if layer.weights else 0)
        held.setdefault(network.base_of(index), {})[offer.kernel] = offer
    offers = [_offers(network, base, own, profile, threads) for base, own in sorted(held.items())]
    return {layer.name: offers[network.base_of(i)] if i in whole else [] for i, layer in enumerate(layers)}


def _offers(
    network: Network, base: int, held: dict[str, Offer], profile: DeviceProfile, threads: int
) -> list[Offer]:
    layer = network.base.layers[base]
    candidates = (network.kernels[layer.kernel].attrs or {}).get(CANDIDATES, ())
    if len(candidates) < 2:
        return []
    values = sum(arg.touched_nbytes for arg in layer.args if isinstance(arg, ValueArg))
    offers = dict(held)
    for name, scratch, weights, work in candidates:
        seconds = profile.seconds(float(work), values + int(weights), threads)
        offers.setdefault(str(name), Offer(str(name), seconds, int(scratch), int(weights)))
    return worth_recording(list(offers.values()), lambda offer: offer.kernel in held)
