"""Chains of layers, their rows band by band, and what splitting makes of a network."""

import itertools
from dataclasses import replace

import pytest
import tvm

from benchmarks.networks.graph import Graph
from flexcomp import plan
from flexcomp.compiler import pipeline
from flexcomp.compiler.weights import evaluate
from flexcomp.device.profile import default_profile
from flexcomp.device.target import resolve_target
from flexcomp.frontend import load_model
from flexcomp.network import Lowered, lower
from flexcomp.network.bands.choose import Split, splits, spread
from flexcomp.network.bands.split import BandBook, Region, chain_of
from flexcomp.network.forms import costs_of, form_of
from flexcomp.network.variants import merge
from flexcomp.program.program import ALIGN, ValueArg
from flexcomp.schedules.row_bands import Rows


def lowered(graph: Graph, output: str, shape: tuple[int, ...]) -> Lowered:
    """The smallest kernels of a network."""
    imported = load_model(graph.model(output, shape), None, None)
    target = resolve_target("llvm -mcpu=x86-64-v3")
    mod = imported.mod
    for phase in (pipeline.simplify(), pipeline.layers(target.vector_unit), pipeline.separate_weights()):
        mod = pipeline.run(mod, phase, "phase")
    (transform,) = (gv for gv in mod.get_global_vars() if gv.name_hint == "main_transform_params")
    weights = evaluate(mod[transform], imported.weights)
    kept = tvm.IRModule({gv: func for gv, func in mod.functions_items() if gv != transform})
    with target.tvm_target:
        mod = pipeline.run(kept, pipeline.operators(target.vector_unit), "operators")
    return lower(mod, weights, target, imported.input_names, imported.output_names)


@pytest.fixture(scope="module")
def stem() -> Lowered:
    """0 transpose, 1 conv 3×3, 2 conv 3×3, 3 pool 3×3 stride 2, 4 conv 1×1, 5 conv with a residual from 4, 6 mean."""
    g = Graph("stem", seed=1)
    x = g.relu(g.conv(g.relu(g.conv(g.input("x", (1, 16, 24, 16)), 16, 3)), 16, 3))
    x = g.relu(g.conv(g.max_pool(x, 3, 2, padding=1), 16, 1))
    x = g.relu(g.op("Add", g.conv(x, 16, 3), x, channels=16))
    return lowered(g, g.op("GlobalAveragePool", x), (1, 16, 1, 1))


def test_rows_grow_backwards_by_the_halo(stem):
    chain = chain_of(stem, 1, 4)
    assert chain.out_rows == 12
    first, second, last = chain.split(5)
    assert first == (Rows(0, 11), Rows(0, 10), Rows(0, 5))
    assert second == (Rows(8, 21), Rows(9, 20), Rows(5, 10))
    assert last == (Rows(18, 24), Rows(19, 24), Rows(10, 12))


def test_a_value_with_two_readers_has_the_rows_of_both(stem):
    chain = chain_of(stem, 4, 6)
    assert chain.links[1].sources == (0, 0)
    assert chain.split(6) == [(Rows(0, 7), Rows(0, 6)), (Rows(5, 12), Rows(6, 12))]
    assert [chain.offset(chain.split(6)[1], 1, operand) for operand in (0, 1)] == [0, 8 * 16 * 4]


def test_a_shortcut_is_computed_when_it_is_needed():
    g = Graph("shortcut", seed=1)
    x = g.input("x", (1, 16, 16, 16))
    shortcut = g.conv(x, 32, 1, stride=2)
    x = g.op("Add", g.conv(g.conv(x, 16, 1), 32, 3, stride=2), shortcut, channels=32)
    network = lowered(g, x, (1, 32, 8, 8))
    convolutions = [i for i, layer in enumerate(network.layers) if layer.op == "conv2d"]
    first, last = convolutions[0], convolutions[-1]
    chain = chain_of(network, first, last + 1)
    assert sorted(link.layer for link in chain.links) == convolutions and chain.links[-1].layer == last
    shortcut_at = next(i for i, link in enumerate(chain.links) if "1×1 16→32" in network.layers[link.layer].description)
    assert shortcut_at == chain.links[-1].sources[1] == len(chain.links) - 2


def test_what_is_no_chain(stem):
    assert chain_of(stem, 0, 2) is None, "the transposition has no bands"
    assert chain_of(stem, 5, 7) is None, "the mean needs every row"
    assert chain_of(stem, 1, 5) is not None
    g = Graph("forks", seed=1)
    x = g.conv(g.input("x", (1, 16, 24, 16)), 16, 3)
    y = g.conv(x, 16, 3)
    z = g.op("Concat", g.conv(y, 16, 1), x, axis=1, channels=32)
    forks = lowered(g, z, (1, 32, 24, 16))
    assert chain_of(forks, 1, 3) is None, "the first result is read later"
    assert chain_of(forks, 2, 4) is not None


def test_bands_start_at_aligned_bytes():
    """12 bytes a pixel and 17 pixels a row: only every sixteenth row starts at a multiple of 64 bytes."""
    g = Graph("narrow", seed=1)
    x = g.conv(g.conv(g.input("x", (1, 3, 48, 17)), 3, 1), 16, 1)
    chain = chain_of(lowered(g, x, (1, 16, 48, 17)), 1, 3)
    assert chain.split(16) is not None and chain.split(12) is None


def test_bands_are_parts_of_whole_values_and_small_values_between(stem):
    book = BandBook(stem)
    order = book.add(Region(1, 4, 4))
    assert [book.bands[i].base for i in order] == [1, 2, 3] * 3
    assert [book.bands[i].layer.name for i in order[:3]] == ["conv2d.1[0:9]", "conv2d.2[0:8]", "max_pool2d.3[0:4]"]
    values = (*stem.values, *book.values)
    written = []
    for i in order:
        band = book.bands[i]
        base = stem.layers[band.base]
        assert band.layer.weights == base.weights and len(band.layer.args) == len(base.args)
        for arg in band.layer.args:
            if isinstance(arg, ValueArg):
                assert arg.offset % ALIGN == 0 and arg.offset + arg.type.nbytes <= values[arg.value].nbytes
        if band.base == 3:
            out = next(arg for arg in band.layer.args if isinstance(arg, ValueArg) and arg.written)
            assert out.value == next(arg.value for arg in base.args if isinstance(arg, ValueArg) and arg.written)
            written.append((out.offset, out.offset + out.type.nbytes))
    assert written[0][0] == 0 and written[-1][1] == 12 * 8 * 16 * 4
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(written))


def test_the_same_bands_are_made_once(stem):
    book = BandBook(stem)
    first = book.add(Region(1, 4, 4))
    count = len(book.bands), len(book.values), len(book.kernels)
    assert book.add(Region(1, 4, 4)) == first
    assert (len(book.bands), len(book.values), len(book.kernels)) == count
    # First, middle and last band of each; the pool's last window ends with the image, so it needs no padding.
    assert len(book.kernels) == 8


def seconds_of(work: float, nbytes: int) -> float:
    return 1e-6 + work * 1e-11 + nbytes * 1e-10


def problem_of(network: Lowered) -> plan.Problem:
    whole = merge([network])
    return form_of(whole, range(len(network.layers)), costs_of(whole, default_profile(8), 1)).problem


def test_splits_keep_what_they_promise(stem):
    """Peaks ascend, work descends; the layers of each split stay below its peak when they are planned."""
    problem = problem_of(stem)
    found = splits(stem, problem, seconds_of)
    bound = max(plan.layer_bounds(problem))
    assert found and all(split.peak < bound and split.seconds > 0 for split in found)
    assert [s.peak for s in found] == sorted(s.peak for s in found)
    assert [s.seconds for s in found] == sorted((s.seconds for s in found), reverse=True)
    for split in found:
        book, order, at = BandBook(stem), [], 0
        for region in split.regions:
            order += [*range(at, region.start), *(len(stem.layers) + i for i in book.add(region))]
            at = region.stop
        order += range(at, len(stem.layers))
        network = replace(merge([stem]), bands=tuple(book.bands), band_values=tuple(book.values))
        form = form_of(network, order, costs_of(network, default_profile(8), 1))
        assert max(plan.layer_bounds(form.problem)) <= split.peak


def test_the_steps_of_neighbouring_splits_are_not_far_apart():
    """A rung of the finest bands is followed by one of fewer, not by one of half as many."""
    found = [Split((), peak, 0.0, steps) for peak, steps in enumerate([247, 240, 154, 121, 99, 85, 73, 63, 58, 57])]
    offered = [split.steps for split in spread(found)]
    assert offered == [247, 154, 99, 73, 57]
    assert spread(found[:1]) == found[:1]
    assert spread(found[:2]) == found[:2]


def test_splits_know_their_steps(stem):
    for split in splits(stem, problem_of(stem), seconds_of):
        book = BandBook(stem)
        inside = sum(region.stop - region.start for region in split.regions)
        assert split.steps == len(stem.layers) - inside + sum(len(book.add(region)) for region in split.regions)


def test_no_splits_where_they_do_not_help():
    g = Graph("dense", seed=1)
    x = g.dense(g.dense(g.input("x", (1, 512)), 512), 64)
    network = lowered(g, x, (1, 64))
    assert splits(network, problem_of(network), seconds_of) == ()


def test_parts_of_a_concatenation_compute_the_same_rows():
    """0 transpose, 1 conv 1×1, 2 and 3 both halves of a concatenation, 4 conv 3×3."""
    g = Graph("fire", seed=1)
    x = g.conv(g.input("x", (1, 16, 24, 16)), 16, 1)
    x = g.op("Concat", g.conv(x, 16, 1), g.conv(x, 16, 3), axis=1, channels=32)
    fire = lowered(g, g.conv(x, 16, 3), (1, 16, 24, 16))
    assert [layer.op for layer in fire.layers[1:5]] == ["conv2d"] * 4
    left, right = (next(a for a in fire.layers[i].args if isinstance(a, ValueArg) and a.written) for i in (2, 3))
    assert left.value == right.value and left.part == right.part == 0.5
    chain = chain_of(fire, 1, 5)
    assert [link.begins for link in chain.links] == [0, 1, 1, 3]
    assert chain.split(12)[1] == (Rows(10, 24), Rows(11, 24), Rows(11, 24), Rows(12, 24))
    row = 16 * 16 * 4
    assert chain.inner_nbytes(chain.split(12)[1]) == [14 * row, (14 + 26) * row, (14 + 26) * row, 26 * row]
    ends = chain_of(fire, 1, 4)
    assert ends.split(12)[0] == (Rows(0, 13), Rows(0, 12), Rows(0, 12)) and ends.inner_nbytes(ends.split(12)[0])[1] == 13 * row
    assert chain_of(fire, 3, 5) is None, "what it reads begins before it"
    assert chain_of(fire, 1, 3) is None, "the other half reads its first result"


def test_bands_of_parts_write_their_rows_of_the_whole():
    g = Graph("fire", seed=1)
    x = g.conv(g.input("x", (1, 16, 24, 16)), 16, 1)
    fire = lowered(g, g.op("Concat", g.conv(x, 16, 1), g.conv(x, 16, 3), axis=1, channels=32), (1, 32, 24, 16))
    book = BandBook(fire)
    bands = [book.bands[i] for i in book.add(Region(1, 4, 8))]
    row = 16 * 32 * 4
    for band in bands:
        (out,) = (arg for arg in band.layer.args if isinstance(arg, ValueArg) and arg.written)
        if band.base in (2, 3):
            assert out.type.shape == (1, 8, 16, 32) and out.offset == band.rows.start * row and out.part == 0.5
    assert [band.rows.start for band in bands if band.base == 3] == [0, 8, 16]
