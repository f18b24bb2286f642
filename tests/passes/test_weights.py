"""Functions of a network's weights."""

from collections import Counter, UserDict

from tvm import relax

from flexcomp.passes.ir import bindings, operator, values_of
from flexcomp.passes.weights import KeptWeight, function_of

from .networks import network

op = relax.op
BRANCHES = 40


class Counted(UserDict):
    """A dict that counts how often keys are looked up."""

    def __init__(self, values) -> None:
        super().__init__(values)
        self.looks = Counter()

    def __getitem__(self, key):
        self.looks["values"] += 1
        return super().__getitem__(key)


def branches():
    """A weight for each branch, doubled and turned before it is used."""

    def body(emit, x, *weights):
        for weight in weights:
            turned = emit(op.permute_dims(emit(op.add(weight, weight)), (1, 0)))
            x = emit(op.matmul(x, turned))
        return x

    return network({"x": (1, 4)}, {f"w{i}": (4, 4) for i in range(BRANCHES)}, body)["main"]


def test_a_function_of_weights_looks_at_what_it_needs_only():
    main = branches()
    values = Counted(values_of(main))
    turned = [var for var, value in values_of(main).items() if operator(value) == "permute_dims"]
    assert len(turned) == BRANCHES
    for index, var in enumerate(turned):
        function = function_of(main, values, var)
        assert [operator(value) for value in values_of(function).values()] == ["add", "permute_dims"]
        first = next(bindings(function))
        assert first.value.args[0].same_as(main.params[1 + index])
    assert values.looks["values"] <= 6 * BRANCHES


def test_what_a_weight_is_made_of():
    main = branches()
    values = values_of(main)
    turned = next(var for var, value in values.items() if operator(value) == "permute_dims")
    made = KeptWeight(main, values, turned, 1).made_of()
    assert operator(values[made.var]) == "add" and made.axis == 0 and made.index is None
    assert KeptWeight(main, values, main.params[3], 0).made_of().index == 2
