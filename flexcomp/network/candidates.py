"""The candidate kernels of every layer of a network, for the record in the library."""

from __future__ import annotations

from flexcomp.device import DeviceProfile
from flexcomp.passes.attributes import CANDIDATES
from flexcomp.program import Candidate, ValueArg, worth_recording

from .forms import layer_seconds
from .variants import Network


def layer_candidates(network: Network, profile: DeviceProfile, threads: int) -> dict[str, list[Candidate]]:
    """By the name of every layer, alternative and band: kernels that could compute the layer; bands have one only."""
    held: dict[int, dict[str, Candidate]] = {}  # by layer and kernel: what the network holds, also what a tuner found
    layers = network.layers
    whole = range(len(layers) - len(network.bands))
    seconds = layer_seconds(network, profile, threads)
    for index in whole:
        layer = layers[index]
        nbytes = layer.weights.nbytes if layer.weights else 0
        candidate = Candidate(layer.implementation, seconds[index], layer.scratch_nbytes, nbytes)
        held.setdefault(network.base_of(index), {})[candidate.kernel] = candidate
    candidates = [_candidates(network, base, own, profile, threads) for base, own in sorted(held.items())]
    return {layer.name: candidates[network.base_of(i)] if i in whole else [] for i, layer in enumerate(layers)}


def _candidates(
    network: Network, base: int, held: dict[str, Candidate], profile: DeviceProfile, threads: int
) -> list[Candidate]:
    layer = network.base.layers[base]
    tried = (network.kernels[layer.kernel].attrs or {}).get(CANDIDATES, ())
    if len(tried) < 2:
        return []
    values = sum(arg.touched_nbytes for arg in layer.args if isinstance(arg, ValueArg))
    candidates = dict(held)
    for name, scratch, weights, work in tried:
        seconds = profile.seconds(float(work), values + int(weights), threads, int(weights))
        candidates.setdefault(str(name), Candidate(str(name), seconds, int(scratch), int(weights)))
    return worth_recording(list(candidates.values()), lambda candidate: candidate.kernel in held)
