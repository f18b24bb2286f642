"""Predicted times of 1×1 kernels beside measured ones: a choice between families is as good as these."""

from dataclasses import replace

import pytest

from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.epilogue import IDENTITY, flops
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

PEAK = 118e3  # operations in a microsecond of the Zen 4 core that the times below come from
ADD = ("relu", ("add", ("acc",), ("tensor", 0)))


@pytest.mark.parametrize(
    ("size", "channels", "out", "epilogue", "direct", "pairs", "quadruples"),
    [  # medians in µs of `flexcomp tune` over ResNet-50, one thread, of the best kernel of each kind
        (56, 64, 256, ADD, 951, 890, None),
        (56, 256, 64, IDENTITY, 896, 922, 961),
        (28, 128, 512, ADD, 930, 853, None),
        (28, 512, 256, IDENTITY, 1781, 1743, 1559),
        (14, 256, 1024, ADD, 931, 837, 810),
        (14, 1024, 256, IDENTITY, 898, 822, 765),
        (7, 2048, 512, IDENTITY, 950, 848, 792),
    ],
)
def test_predictions_are_near_what_was_measured(size, channels, out, epilogue, direct, pairs, quadruples):
    offers = candidates(ConvSpec(1, size, size, channels, out, epilogue=epilogue), VectorUnit(16, 32))
    measured = {"direct": direct, "pairs": pairs, "quadruples": quadruples}
    measured = {kind: time for kind, time in measured.items() if time is not None}
    for kind, time in measured.items():
        predicted = min((offer.work / PEAK for offer in offers if kind in str(offer)), default=time)
        assert predicted == pytest.approx(time, rel=0.05), kind
    fastest = min(offers, key=lambda offer: offer.work)
    assert min(measured, key=measured.__getitem__) in str(fastest)


def test_kinds_of_a_family_have_speeds_of_their_own():
    spec, unit = ConvSpec(1, 14, 14, 1024, 256), VectorUnit(16, 32)
    slow = replace(unit, slowness=(("strassen", 0.9), ("strassen on two levels", 0.8)))
    usual, told = ({str(offer): offer for offer in candidates(spec, one)} for one in (unit, slow))
    times = {offer.measured_as: told[name].work / offer.work for name, offer in usual.items() if name in told}
    assert times == pytest.approx({"direct": 1.0, "strassen": 0.9, "strassen on two levels": 0.8})
    coarse = {str(offer): offer for offer in candidates(spec, replace(unit, slowness=(("strassen", 0.9),)))}
    assert all(coarse[name].work == pytest.approx(0.9 * offer.work) for name, offer in usual.items() if "strassen" in name)


def test_functions_of_results_take_time():
    plain, gelu = (
        {str(offer): offer.work for offer in candidates(ConvSpec(1, 14, 14, 64, 128, epilogue=one), VectorUnit(16, 32))}
        for one in (IDENTITY, ("gelu", ("add", ("acc",), ("const", 1.0))))
    )
    more = 14 * 14 * 128 * flops(("gelu", ("acc",)))
    assert more > 0 and gelu == pytest.approx({name: work + more for name, work in plain.items()})
    assert flops(("relu", ("multiply", ("sigmoid", ("acc",)), ("acc",)))) == flops(("sigmoid", ("acc",)))
