"""How a server's budget is parted: between models and their requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flexcomp.errors import BudgetError
from flexcomp.runtime import Budget, Fitting, ladder_of, least_bytes
from flexcomp.units import enough, human_bytes

from .protocol import carried_nbytes

_PART, _MOST_NBYTES = 8, 32 << 20  # of the budget, for requests


def requests_nbytes(budget: Budget, summaries: Sequence[Mapping], asked: int | None = None, decoders: Sequence[int] = ()) -> int:
    """The bytes of `budget` that are for requests; the rest is for the models of `summaries`, and `decoders`: bytes of each.

    `asked`, or an eighth, and no more than 32 MiB: less where models need it, but enough for one request of any of them, with
    its answer, in binary tensors. Raises BudgetError if that is too much, with the smallest sufficient budget.
    """
    least = (least_bytes([ladder_of(one) for one in summaries]) if summaries else 1) + sum(decoders)
    if asked is None:
        one_request = [_carried_nbytes(Fitting(one)) for one in summaries]
        asked = max(*one_request, carried_nbytes((), ()), min(budget.nbytes // _PART, _MOST_NBYTES, budget.nbytes - least))
    if budget.nbytes < least + asked:
        count = len(summaries) + len(decoders)
        models = f"{count} model{'s' * (count != 1)}"
        raise BudgetError(
            f"a budget of {human_bytes(budget.nbytes, budget.units)} is too small for {models} and "
            f"{enough(asked, budget.units)} for requests: the smallest feasible budget is {enough(least + asked, budget.units)}"
        )
    return asked


def _carried_nbytes(fitting: Fitting) -> int:
    return carried_nbytes(fitting.most_inputs, fitting.most_outputs)
