"""Equal weights of several models in a pool: held once, read once, never wrong."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp import runtime_ext
from flexcomp.errors import StorageError
from flexcomp.program.program_bytes import PROGRAM_KIND
from flexcomp.program.tapes import Copy, Tape
from tests.by_hand import encode_program, written
from tests.runtime import tiny as builder

_MB = 1 << 20
_LAYER = builder.BLOCKS * builder.BLOCK_NBYTES
_COMMON = 4 * _LAYER  # bytes that both have
two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two lanes need two cores")


def _faster(program):
    """Larger rungs are faster."""
    kept = [rung.arena - rung.working for rung in program.rungs]
    seconds = [1e-3 * (2 - one / max(kept)) for one in kept]
    return replace(program, rungs=tuple(map(lambda rung, s: replace(rung, seconds=s), program.rungs, seconds)))


@pytest.fixture(scope="module")
def compiled():
    return builder.kernels("shared_")


@pytest.fixture(scope="module")
def both(tmp_path_factory, compiled):
    """A network of six layers, and one whose layers are the first four of these, with another end."""
    folder = tmp_path_factory.mktemp("shared")
    return {
        name: builder.export(folder / f"{name}.so", "shared_", layers, compiled=compiled, plan=_faster)
        for name, layers in (("long", 6), ("short", 4))
    }


def _resident(both):
    """Bytes with everything in memory, nothing of it twice."""
    rungs = [network.program.rungs[-1] for network in both.values()]
    return max(rung.working for rung in rungs) + sum(rung.arena - rung.working for rung in rungs) - _COMMON


def _pool(budget, both, **options):
    pool = flexcomp.Pool(budget, threads=1, **options)
    for name, network in both.items():
        pool.add(name, network.library)
    return pool


def _run(pool, both, x):
    return {name: pool.run(name, {"x": x})["out"] for name in both if name in pool.models}


def _read(pool):
    return sum(model["total_bytes_read"] for model in pool.stats()["models"].values())


@pytest.fixture(scope="module")
def alone(both, x):
    """Outputs of sessions of their own."""
    outputs = {}
    for name, network in both.items():
        with flexcomp.load(network.library, budget="all", threads=1) as session:
            outputs[name] = session.run({"x": x})["out"]
    return outputs


def _equal(outputs, alone):
    for name, output in outputs.items():
        np.testing.assert_array_equal(output, alone[name])


def _saying(network, library, compiled, digests):
    """The network's library with other digests of its weights."""
    runtime_ext.register()
    blob = encode_program(network.program, replace(network.digest, digests=digests))
    module = tvm_ffi.get_global_func(PROGRAM_KIND + ".create")(blob)
    module.import_module(compiled)
    module.export_library(str(library), addons=[str(runtime_ext.runtime_object())], options=runtime_ext.link_options())
    library.with_suffix(".weights").write_bytes(network.weights.read_bytes())
    return library


def test_equal_weights_are_held_once_and_read_once(both, alone, x):
    with _pool(_resident(both), both) as pool:
        plan = pool.plan()
        assert [model.rung for model in plan.models] == [2, 2]  # all in memory, which takes the memory of one
        assert plan.bytes == _resident(both) and plan.shared_bytes == _COMMON
        assert str(plan).endswith("1,048,576 B are weights of several models")
        for _ in range(3):
            _equal(_run(pool, both, x), alone)
        stats = pool.stats()
        assert stats["shared_bytes"] == _COMMON and stats["claimed_bytes"] == _resident(both)
        assert stats["resident_bytes"] <= _resident(both)
        assert [model["shared_bytes"] for model in stats["models"].values()] == [_COMMON, _COMMON]
        stored = sum(network.weights.stat().st_size for network in both.values())
        assert _read(pool) <= stored - _COMMON


def test_without_equal_weights_nothing_is_shared(both, compiled, tmp_path, x):
    other = builder.export(tmp_path / "other.so", "shared_", seed=5, compiled=compiled, plan=_faster)
    networks = {"long": both["long"], "other": other}
    with _pool(4 * _MB, networks) as pool:
        for name, output in _run(pool, networks, x).items():
            builder.close_to(output, networks[name].reference(x))
        assert pool.stats()["shared_bytes"] == pool.plan().shared_bytes == 0


def test_a_library_without_digests_shares_nothing(both, alone, compiled, tmp_path, x):
    silent = _saying(both["long"], tmp_path / "silent.so", compiled, {})
    with _pool(4 * _MB, {"long": both["long"]}) as pool:
        pool.add("silent", silent)
        for name in ("long", "silent"):
            np.testing.assert_array_equal(pool.run(name, {"x": x})["out"], alone["long"])
        assert pool.stats()["shared_bytes"] == 0


def test_one_is_removed_and_the_other_goes_on(both, alone, x):
    with _pool(_resident(both), both) as pool:
        _equal(_run(pool, both, x), alone)
        read = pool.stats()["models"]["short"]["total_bytes_read"]
        pool.remove("long")
        _equal(_run(pool, both, x), alone)
        stats = pool.stats()
        assert stats["models"]["short"]["total_bytes_read"] == read  # nothing is read again
        assert stats["claimed_bytes"] == both["short"].program.rungs[-1].arena
        pool.add("long", both["long"].library)
        _equal(_run(pool, both, x), alone)
        assert pool.stats()["claimed_bytes"] <= _resident(both)
    with _pool(_resident(both), both) as pool:  # the one that has read them goes
        _equal(_run(pool, both, x), alone)
        pool.remove("short")
        _equal(_run(pool, both, x), alone)


def test_every_budget_is_kept(both, alone, x):
    with _pool(4 * _MB, both) as pool:
        least = pool.plan().least_bytes
        for budget in (*range(least, _resident(both) + 300_000, 150_000), _resident(both), least, 4 * _MB):
            plan = pool.set_budget(budget)
            assert plan.bytes <= budget
            for name, output in _run(pool, both, x).items():
                builder.close_to(output, both[name].reference(x))
            stats = pool.stats()
            assert stats["resident_bytes"] <= stats["claimed_bytes"] <= budget
        _equal(_run(pool, both, x), alone)


@two_cores
def test_two_lanes_read_the_same_weights(both, alone, x):
    working = min(network.program.rungs[-1].working for network in both.values())
    with _pool(_resident(both) + working, both, lanes=2) as pool:
        assert pool.plan().shared_bytes == _COMMON
        for _ in range(5):
            wrong = []

            def run(name, pool=pool, wrong=wrong):
                for _ in range(5):
                    if not np.array_equal(pool.run(name, {"x": x})["out"], alone[name]):
                        wrong.append(name)

            threads = [threading.Thread(target=run, args=(name,)) for name in both]
            for thread in threads:
                thread.start()
            for budget in (pool.plan().least_bytes, _resident(both) + working):
                pool.set_budget(budget)
            for thread in threads:
                thread.join()
            assert not wrong
        assert _run(pool, both, x) is not None and pool.stats()["claimed_bytes"] <= _resident(both) + working


@pytest.mark.parametrize("first", ["honest", "lying"])
def test_a_library_that_lies_harms_no_other_model(both, alone, compiled, tmp_path, x, first):
    """It says that its weights are those of another library, and they are not."""
    liar = builder.export(tmp_path / "liar.so", "shared_", seed=5, compiled=compiled, plan=_faster)
    library = _saying(liar, tmp_path / "lying.so", compiled, both["long"].digest.digests)
    with flexcomp.Pool(8 * _MB, threads=1) as pool:
        pool.add("honest", both["long"].library)
        pool.add("lying", library)
        assert pool.plan().shared_bytes > 0
        for name in (first, "honest", "lying", "honest"):
            if name == "honest":
                np.testing.assert_array_equal(pool.run(name, {"x": x})["out"], alone["long"])
            elif pool.stats()["models"]["honest"]["completed"] == 0:
                with pytest.raises(StorageError, match="does not hold the weights of layer mv0 that its library was built with"):
                    pool.run(name, {"x": x})
            else:
                pool.run(name, {"x": x})


def _headed(classes: int):
    """Networks with the same convolutions, of which the fast kernels take prepared weights."""
    g = Graph(f"headed_{classes}", seed=3)
    x = g.relu(g.conv(g.relu(g.conv(g.input("x", (1, 3, 16, 16)), 64, 3)), 128, 3))
    return g.model(g.op("GlobalAveragePool", g.conv(x, classes, 1)), (1, classes, 1, 1))


def test_prepared_weights_are_shared(tmp_path):
    """Made once by one of two models, and taken by both: every bit as in sessions of their own."""
    picture = {"x": np.random.default_rng(5).standard_normal((1, 3, 16, 16)).astype("f4")}
    options = {"target": "llvm -mcpu=x86-64-v3", "store": "once", "threads": 1}
    artifacts = {classes: flexcomp.build(_headed(classes), **options) for classes in (10, 100)}
    expected = {}
    with flexcomp.Pool("100MB", threads=1) as pool:
        for classes, artifact in artifacts.items():
            artifact.export_library(tmp_path / f"{classes}.so")
            pool.add(f"{classes}", tmp_path / f"{classes}.so")
            with flexcomp.load(tmp_path / f"{classes}.so", budget="all", threads=1) as session:
                outputs = [session.run(picture) for _ in range(2)][1]  # the first may be by other kernels
                expected[classes] = outputs
        shared = pool.plan().shared_bytes
        rungs = [artifact.program.rungs[-1] for artifact in artifacts.values()]
        prepared = sum(artifacts[10].program.prepared_nbytes(one.prepare) for one in rungs[0].tapes.filled if one.prepare)
        assert shared >= prepared > 300_000
        for _ in range(2):
            for classes in (10, 100):
                for name, output in pool.run(f"{classes}", picture).items():
                    np.testing.assert_array_equal(output, expected[classes][name])
        stats = pool.stats()
        assert stats["resident_bytes"] <= stats["claimed_bytes"] <= sum(rung.arena for rung in rungs) - shared
        pool.remove("10")
        for name, output in pool.run("100", picture).items():
            np.testing.assert_array_equal(output, expected[100][name])


def _staged(program, load: int, via: int):
    """With everything in memory, one load is read to the place of another, and copied to its own before that one is read."""
    *others, rung = written(program).rungs
    reads = {one.load: one for one in rung.tapes.operations}
    place = reads[via].to
    staged = (replace(reads[load], to=place, early=False), Copy(load, place, reads[load].nbytes, reads[load].to))
    reads[via] = replace(reads[via], early=False)
    table = [one for number in sorted(reads) for one in (staged if number == load else (reads[number],))]
    order = sorted(table, key=lambda one: one.load != load)
    turns = tuple((table.index(one), 0) for one in order)
    needed = len(table)
    first = Tape(turns, tuple(needed if need else 0 for need in rung.tapes.first.need))
    tapes = replace(rung.tapes, operations=tuple(table), first=first, fill=Tape(turns, ()))
    return replace(program, rungs=(*others, replace(rung, tapes=tapes)))


@pytest.mark.parametrize(
    ("load", "via", "lost"),
    [
        (11, 0, 1),  # through a place that would be given up
        (0, 11, 1),  # what would not be read any more goes through a place that stays
        (0, 2, 2),  # both
    ],
)
def test_weights_whose_places_other_operations_use_are_not_shared(both, alone, compiled, tmp_path, x, load, via, lost):
    def plan(program):
        return _staged(_faster(program), load, via)

    networks = both | {"long": builder.export(tmp_path / "staged.so", "shared_", 6, compiled=compiled, plan=plan)}
    with _pool(4 * _MB, networks) as pool:
        assert pool.plan().shared_bytes == _COMMON - lost * _LAYER
        for _ in range(2):
            _equal(_run(pool, networks, x), alone)
