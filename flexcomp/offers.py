"""Which kernels were on offer for every layer of a network, for the record in the library."""

from __future__ import annotations

from .choices import Offer, worth_recording
from .device import DeviceProfile
from .passes.attributes import CANDIDATES
from .program import ValueArg
from .variants import Network, layer_seconds


def layer_offers(network: Network, profile: DeviceProfile, threads: int) -> dict[str, list[Offer]]:
    """By the name of every layer and alternative: what could compute it, if there was a choice."""
    held: dict[int, dict[str, float]] = {}  # by layer: predicted time of what the network holds
    for index, (layer, seconds) in enumerate(zip(network.layers, layer_seconds(network, profile, threads), strict=True)):
        held.setdefault(network.base_of(index), {})[layer.implementation] = seconds
    offers = [_offers(network, base, own, profile, threads) for base, own in sorted(held.items())]
    return {layer.name: offers[network.base_of(index)] for index, layer in enumerate(network.layers)}


def _offers(
    network: Network, base: int, held: dict[str, float], profile: DeviceProfile, threads: int
) -> list[Offer]:
    layer = network.base.layers[base]
    candidates = (network.kernels[layer.kernel].attrs or {}).get(CANDIDATES, ())
    if len(candidates) < 2:
        return []
    values = sum(arg.type.nbytes for arg in layer.args if isinstance(arg, ValueArg))
    offers = []
    for name, scratch, weights, work in candidates:
        seconds = held.get(str(name), profile.seconds(float(work), values + int(weights), threads))
        offers.append(Offer(str(name), seconds, int(scratch), int(weights)))
    return worth_recording(offers, lambda offer: offer.kernel in held)
