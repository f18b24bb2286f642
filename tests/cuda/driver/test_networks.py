"""Networks from ONNX to outputs on the GPU of tests: built as for a real one, and run by the runtime under several budgets."""

import numpy as np
import onnxruntime
import pytest

import flexcomp
from tests.cuda.driver.pictures import pictures
from tests.cuda.driver.toolkit import build
from tests.decoding import Sizes, gpt2_decoder
from tests.operators.inputs import inputs_of
from tests.shaped import INPUTS, encoder

SEEDS = (1, 2, 3)  # of the order in which threads run, and of delays
# A GPU with memory of its own, and one whose memory is the CPU's.
GPUS = {"discrete": {"architecture": 80}, "integrated": {"architecture": 87, "integrated": 1, "granularity": 4096}}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Machine code for sm_80, which sm_87 runs, too."""
    model = pictures()
    library = build(model, "cuda -arch=sm_80", tmp_path_factory.mktemp("pictures") / "pictures.so")
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    given = inputs_of(reference)
    return library, given, reference.run(None, given)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", ["min", 0.5, "all"])
@pytest.mark.parametrize("gpu", GPUS)
def test_outputs_are_those_of_onnx_runtime(fake, network, gpu, budget, seed):
    library, given, expected = network
    fake.set(seed=seed, compute_delay_us=50, copy_delay_us=50, **GPUS[gpu])
    with flexcomp.load(library, budget) as session:
        for _ in range(2):  # the second one finds weights that stayed, and loads that were read ahead
            for found, wanted in zip(session.run(given).values(), expected, strict=True):
                assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
        stats = session.stats()
        assert (stats["bytes_read"] > 0) == (budget != "all")
        assert fake.peak <= stats["budget_bytes"]


def test_there_are_budgets_to_choose_from(network):
    library, *_ = network
    with pytest.raises(flexcomp.BudgetError):
        flexcomp.load(library, "16KiB")
    assert len(flexcomp.load(library, "all").ladder) >= 3


SHAPES = (24, 16)


@pytest.fixture(scope="module")
def shaped(tmp_path_factory):
    """An encoder of texts of two lengths."""
    library = tmp_path_factory.mktemp("shaped") / "shaped.so"
    return build(encoder(256), "cuda -arch=sm_80", library, input_shapes=INPUTS, shapes={"n": SHAPES})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gpu", GPUS)
def test_a_library_of_several_shapes_takes_each_inference_in_its_own(fake, shaped, gpu, seed):
    """Whichever ran before, and after budgets have changed; with all weights resident a change of shapes reads few of them."""
    fake.set(seed=seed, compute_delay_us=50, copy_delay_us=50, **GPUS[gpu])
    reference = onnxruntime.InferenceSession(encoder(256).SerializeToString())
    rng = np.random.default_rng(seed)
    with flexcomp.load(shaped, "min") as session:
        for budget in ("min", "all", "min", "all"):
            session.set_budget(budget)
            for n in (*rng.permutation(SHAPES), *rng.permutation(SHAPES)):
                ids = rng.integers(0, 300, (1, n))
                (wanted,) = reference.run(None, {"ids": ids})
                np.testing.assert_allclose(session.run({"ids": ids})["y"], wanted, atol=1e-4 * np.abs(wanted).max())
            if budget == "all":
                assert session.stats()["bytes_read"] < session.info["weights_bytes"] / 10
        assert fake.peak <= session.stats()["budget_bytes"]


SIZES = Sizes(layers=1, width=64, heads=4, vocabulary=3000)
TOKENS, CAPACITY = 3, 24


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    model = gpt2_decoder(TOKENS, CAPACITY, SIZES)
    library = tmp_path_factory.mktemp("decoder") / "decoder.so"
    return model, build(model, "cuda -arch=sm_87", library, state=SIZES.state)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", ["min", "all"])
def test_a_decoder_keeps_its_caches_in_the_memory_of_the_gpu(fake, decoder, budget, seed):
    """Numbers of tokens are checked before use, rows of caches are exchanged, slices of the embedding are held."""
    model, library = decoder
    fake.set(seed=seed, compute_delay_us=50, copy_delay_us=50, **GPUS["integrated"])
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    names = [port.name for port in reference.get_outputs()]
    caches = {name: np.zeros((1, SIZES.heads, CAPACITY, SIZES.depth), np.float32) for name in SIZES.state.values()}
    with flexcomp.load(library, budget) as session:
        for at in (0, TOKENS, 2 * TOKENS):
            given = {"ids": np.arange(at, at + TOKENS).reshape(1, -1) * 300 % 3000, "at": np.array([at])}
            wanted = dict(zip(names, reference.run(None, given | caches), strict=True))
            caches = {read: wanted.pop(made) for made, read in SIZES.state.items()}
            for name, value in session.run(given).items():
                assert np.abs(value - wanted[name]).max() <= 1e-4 * np.abs(wanted[name]).max()
        with pytest.raises(flexcomp.InputError, match="3000"):
            session.run({"ids": np.full((1, TOKENS), 3000), "at": np.array([0])})
        for name, value in session.state().items():
            np.testing.assert_allclose(value, caches[name], atol=1e-5)
