"""Cutting work into parts: every thread's share, against counting."""

from hypothesis import given
from hypothesis import strategies as st

from flexcomp.schedules.tiles.parts import choose_parts, longest_share


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 60), st.integers(1, 5))
def test_longest_share_counts_what_the_busiest_thread_does(units, blocks, parts, threads):
    parts = min(parts, units)
    sizes = _sizes(units, parts)
    tasks = [size for size in sizes for _ in range(blocks)]
    each = -(-len(tasks) // threads)
    assert longest_share(units, blocks, parts, threads) == max(
        sum(tasks[thread * each : (thread + 1) * each]) for thread in range(threads)
    )


def _sizes(units: int, parts: int) -> list[int]:
    base, larger = divmod(units, parts)
    return [base + (part < larger) for part in range(parts)]


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 8), st.integers(1, 4))
def test_more_parts_than_asked_for_only_for_a_shorter_share(units, blocks, fewest, threads):
    parts = choose_parts(units, blocks, fewest, threads)
    least = min(fewest, units)
    assert least <= parts <= units
    if parts > least:
        assert longest_share(units, blocks, parts, threads) < longest_share(units, blocks, least, threads)
    if threads == 1:
        assert parts == least


def test_one_block_is_shared_by_two_threads():
    """64 channels in one block at 13×13 pixels used to run on one thread."""
    parts = choose_parts(29, 1, 1, 2)
    assert longest_share(29, 1, parts, 2) <= 15


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 8), st.integers(1, 4))
def test_threads_keep_their_rows_if_shares_stay_even(units, blocks, fewest, threads):
    parts = choose_parts(units, blocks, fewest, threads, keeps_rows=True)
    freely = choose_parts(units, blocks, fewest, threads)
    if parts != freely:
        assert parts % threads == 0
        assert longest_share(units, blocks, parts, threads) <= 1.02 * longest_share(units, blocks, freely, threads)
    assert min(fewest, units) <= parts <= units


def test_a_wide_layer_is_cut_by_rows_for_the_layer_behind_it():
    """64 → 384 channels at 14×14 pixels used to be cut by channels, the depthwise layer behind it by rows."""
    assert choose_parts(22, 8, 1, 2) == 1
    assert choose_parts(22, 8, 1, 2, keeps_rows=True) == 2
