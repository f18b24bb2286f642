"""Reading AArch64 assembly."""

from benchmarks.lab.arm.assembly import loops

TEXT = """
kernel:
	.cfi_startproc
.LBB0_1:
	mov	x9, xzr
.LBB0_2:                                // inner
	ldp	q0, q1, [x0], #32
	ldr	q2, [x29, #16]
	fmla	v16.4s, v0.4s, v2.s[0]
	fmla	v17.4s, v1.4s, v2.s[1]
	fmadd	s1, s2, s3, s1
	subs	x9, x9, #1
	b.ne	.LBB0_2
	str	q16, [x1]
	b.ne	.LBB0_1
.LBB0_3:
	ldr	q3, [sp, #48]
	fmla	v1.4s, v2.4s, v3.4s
	stp	q1, q2, [sp, #64]
	str	q1, [x1]
	cbnz	x3, .LBB0_3
	ret
"""


def test_innermost_loops_and_what_they_do():
    inner, last = loops(TEXT)
    assert len(inner.instructions) == 7
    assert (inner.fmas, inner.stores, inner.spills) == (2, 0, 0)
    assert (last.fmas, last.stores, last.spills) == (1, 1, 2)


def test_products_by_the_width_of_their_factors():
    body = "fmla v16.{0}, v0.{0}, v2.{1}[0]"
    for name, line, products in (
        ("fmla", body.format("4s", "s"), 4), ("fmla", body.format("8h", "h"), 8), ("sdot", "sdot v5.4s, v1.16b, v2.4b[1]", 16),
    ):  # fmt: skip
        (loop,) = loops(f".LBB0_1:\n\t{line}\n\tfmadd s1, s2, s3, s1\n\tb.ne\t.LBB0_1\n")
        assert (loop.fmas, loop.products) == (1, products), name


def test_code_without_loops():
    assert list(loops("kernel:\n\tb\t.LBB0_1\n.LBB0_1:\n\tret\n")) == []
