"""How the extents of outputs follow from those of inputs, found by comparing networks of several lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flexcomp.errors import InputError
from flexcomp.program import TensorType
from flexcomp.runtime import Axes, Derived, Padding

Extents = Mapping[str, int]


def axes_of_outputs(
    outputs: Sequence[str],
    seen: Sequence[tuple[Extents, Mapping[str, TensorType]]],
    ports_at: Callable[[Extents], Mapping[str, TensorType]],
) -> Axes:
    """The names of the extents of outputs that differ in networks of several extents, found by comparing them; or how an extent
    follows from a name's.
    """
    found = {}
    first, ports = seen[0]
    for output in outputs:
        names: list[str | Derived | None] = []
        for axis, extent in enumerate(ports[output].shape):
            sizes = [(extents, of[output].shape[axis : axis + 1]) for extents, of in seen]
            same = [name for name in first if all(size == (extents[name],) for extents, size in sizes)]
            if all(size == (extent,) for _, size in sizes):
                names.append(None)
            elif len(same) == 1:
                names.append(same[0])
            else:

                def size_of(extents: Extents, output: str = output, axis: int = axis) -> int:
                    return ports_at(extents)[output].shape[axis]

                rule = None if same else derived([one for one, _ in sizes], size_of)
                if rule is None:
                    at = next(extents for extents, size in sizes if size != (extent,))
                    said = " or ".join(same) if same else "none of the names that shapes have, nor a part of one such as n / 2"
                    raise InputError(
                        f"pad: {_where(output, axis, extent, first)} and others for {named(at)}: that is {said}, so it cannot be "
                        "cut to the length of the inputs. Declare the shapes that you need, without pad"
                    )
                names.append(rule)
        if any(names):
            found[output] = tuple(names)
    return found


def derived(seen: Sequence[Extents], size_of: Callable[[Extents], int]) -> Derived | None:
    """How a size follows from one extent: found at the largest one, and right for all that were `seen` and for the smallest."""
    first = seen[0]
    for name, most in first.items():
        least = min(one[name] for one in seen)

        def size(n: int, name: str = name) -> int:
            return size_of({**first, name: n})

        found = _fitted(name, size, least, most)
        if found is None or any(size_of(one) != found(one[name]) for one in seen):
            continue
        step = least + -(least + found.add) % found.divisor  # the smallest extent at which the size grows
        if all(size(n) == found(n) for n in (step - 1, step) if least <= n <= most):
            return found
    return None


def _fitted(name: str, size: Callable[[int], int], least: int, most: int) -> Derived | None:
    """The rule of sizes that grow by as much after as many extents each time, from the two last steps."""

    def before(n: int) -> int | None:
        """The largest extent with another size than n."""
        low, high = max(least, n - 1), n
        while size(low) == size(n):
            if low == least:
                return None
            low, high = max(least, n - 2 * (n - low)), low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if size(middle) == size(n) else (middle, high)
        return low

    last = before(most)
    earlier = None if last is None else before(last)
    if last is None or earlier is None or size(last) >= size(most):
        return None
    times, divisor = size(most) - size(last), last - earlier
    add = -(last + 1) % divisor
    return Derived(name, times, add, divisor, size(most) - times * ((last + 1 + add) // divisor))


def require_cut(padding: Padding, extents: Extents, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """InputError where an output of a length has another extent than its rule says."""
    for output, axes in padding.outputs.items():
        for axis, (of, size) in enumerate(zip(axes, shapes[output], strict=True)):
            if isinstance(of, Derived) and of(extents[of.of]) != size:
                raise InputError(
                    f"pad: {_where(output, axis, size, extents)}, and not {of(extents[of.of])}, which follows from others: it "
                    "cannot be cut to the length of the inputs. Declare the shapes that you need, without pad"
                )


def _where(output: str, axis: int, size: int, extents: Extents) -> str:
    return f'the output "{output}" has {size} elements along axis {axis} for {named(extents)}'


def named(extents: Extents) -> str:
    """Extents as text."""
    return ", ".join(f"{name}={extent}" for name, extent in extents.items())
