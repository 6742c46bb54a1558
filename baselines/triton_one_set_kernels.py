"""Triton kernels of `baselines.triton_one_set`: the one-set sigmoid loss over the article's ladder, in three launches.

    prepare   inverse norms, the positive pairs' cosines, zeroed sums
    score     64 x 64 tiles of the upper triangle; five prefixes' cosines from one product; weights and sums
    gradient  dX = W X per band of columns, with everything that is not a product in its epilogue

The grid takes every off-diagonal cell for a negative: with logit l, weight sigmoid(l) and loss softplus(l). The one
positive of row i, row i ^ 1, is corrected exactly, in float32, at the end: its weight less 1, its loss less l.

Column band b (columns between prefix b - 1 and prefix b) takes its gradient from all prefixes p >= b. So `score` keeps
the weights of earlier prefixes in registers, two bf16 in a word, adds them up from the widest prefix down, and stores
five planes of sums; plane b then meets band b of X in `gradient`. Planes hold the upper triangle only, in blocks of
BLOCK x BLOCK; below the diagonal a block is read transposed.

Sizes: n live rows, R rows padded to a multiple of BLOCK; `x`, `dx` bf16 `[R, 1024]`; `inverse`, `positive`, `sums`
float32 `[5, R]`; `planes` bf16 `[5 * blocks * BLOCK, BLOCK]`; `scale_at` and `bias_at` one float32 each; `results`
float32 loss, d/d(scale), d/d(bias), unused.
"""

# Triton's interpreter (TRITON_INTERPRET=1) knows no PTX: there the one-instruction helpers are written in Triton. Nor
# does it vectorise a reduction by a function of the kernel's own, which takes it minutes.

import os

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
BLOCK = tl.constexpr(128)
DIMS = tl.constexpr(1024)

if os.environ.get("TRITON_INTERPRET") == "1":

    @triton.jit
    def _dot(a, b, sums):
        """The interpreter multiplies bf16 codes as integers, so it gets float32."""
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sums)

    @triton.jit
    def _exp2(x):
        return tl.exp2(x)

    @triton.jit
    def _log2(x):
        return tl.log2(x)

    @triton.jit
    def _reciprocal(x):
        return 1.0 / x

    @triton.jit
    def _rounded(x):
        """The bits of float32 rounded to the nearest bf16, which the interpreter's own conversion cuts off."""
        bits = x.to(tl.int32, bitcast=True)
        return (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536

    @triton.jit
    def _bf16(x):
        return _rounded(x).to(tl.float32, bitcast=True).to(tl.bfloat16)

    @triton.jit
    def _pack(high, low):
        return _rounded(high) | ((_rounded(low) >> 16) & 0xFFFF)

    @triton.jit
    def _product_of_eight(x):
        x = tl.permute(x, [0, 2, 1])
        a, b = tl.split(tl.reshape(x, [x.shape[0], x.shape[1], 4, 2]))
        c, d = tl.split(tl.reshape(a * b, [x.shape[0], x.shape[1], 2, 2]))
        e, f = tl.split(c * d)
        return e * f

    @triton.jit
    def _low(word):
        return (word << 16).to(tl.float32, bitcast=True)

    @triton.jit
    def _high(word):
        return (word & -65536).to(tl.float32, bitcast=True)

else:

    @triton.jit
    def _dot(a, b, sums):
        return tl.dot(a, b, sums)

    @triton.jit
    def _bf16(x):
        return x.to(tl.bfloat16)

    @triton.jit
    def _exp2(x):
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)

    @triton.jit
    def _log2(x):
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)

    @triton.jit
    def _reciprocal(x):
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)

    @triton.jit
    def _pack(high, low):
        """Two float32 rounded to bf16 in one word."""
        asm: tl.constexpr = "cvt.rn.bf16x2.f32 $0, $1, $2;"
        return tl.inline_asm_elementwise(asm, "=r,f,f", [high, low], tl.int32, is_pure=True, pack=1)

    @triton.jit
    def _product(a, b):
        return a * b

    @triton.jit
    def _product_of_eight(x):
        """Of `[rows, 8, columns]`, along the eight."""
        return tl.reduce(x, 1, _product)

    @triton.jit
    def _low(word):
        return tl.inline_asm_elementwise("shl.b32 $0, $1, 16;", "=f,r", [word], tl.float32, is_pure=True, pack=1)

    @triton.jit
    def _high(word):
        asm: tl.constexpr = "and.b32 $0, $1, 0xffff0000;"
        return tl.inline_asm_elementwise(asm, "=f,r", [word], tl.float32, is_pure=True, pack=1)


@triton.jit
def _triangle(column):
    """Blocks of the upper triangle in the block columns before this one."""
    return column * (column + 1) // 2


@triton.jit
def _inverse(squares):
    """1 / norm, and 0 for a row of zeros (padding, too), whose cosines are then 0."""
    return tl.where(squares > 1e-24, tl.rsqrt(tl.maximum(squares, 1e-24)), 0.0)


@triton.jit
def prepare(x, inverse, positive, sums, results, R, ROWS: tl.constexpr):
    """Norms and the positive's cosine of ROWS rows, for all five prefixes."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = tl.zeros([ROWS], tl.float32)
    other = tl.zeros([ROWS], tl.float32)
    both = tl.zeros([ROWS], tl.float32)
    for p in tl.static_range(5):
        columns = (0 if p == 0 else 32 << p) + tl.arange(0, 64 if p == 0 else 32 << p)
        a = tl.load(x + rows[:, None] * DIMS + columns[None, :]).to(tl.float32)
        b = tl.load(x + (rows ^ 1)[:, None] * DIMS + columns[None, :]).to(tl.float32)
        own += tl.sum(a * a, 1)
        other += tl.sum(b * b, 1)
        both += tl.sum(a * b, 1)
        tl.store(inverse + p * R + rows, _inverse(own))
        tl.store(positive + p * R + rows, both * _inverse(own) * _inverse(other))
        tl.store(sums + p * R + rows, tl.zeros([ROWS], tl.float32))
    if tl.program_id(0) == 0:
        tl.store(results + tl.arange(0, 4), tl.zeros([4], tl.float32))


@triton.jit
def _block_of(number, GROUP: tl.constexpr):
    """Row and column of a block; GROUP x GROUP blocks follow one another, so that their rows of X stay in cache."""
    group = number // (GROUP * GROUP)
    rest = number % (GROUP * GROUP)
    column = ((tl.sqrt(8.0 * group.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    if _triangle(column) > group:
        column -= 1
    if _triangle(column + 1) <= group:
        column += 1
    row = group - _triangle(column)
    return row * GROUP + rest % GROUP, column * GROUP + rest // GROUP


@triton.jit
def score(
    xa,
    xb,
    planes,
    inverse,
    sums,
    results,
    scale_at,
    bias_at,
    n,
    R,
    blocks,
    GROUP: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    STAGES: tl.constexpr,
    EIGHT: tl.constexpr,
):
    """One TILE_M x TILE_N tile: five planes of weights, loss, sum of weights, and the rows' sums of weight x cosine.

    EIGHT: one logarithm for eight cells, by way of their product, which stays in range while scale + bias < 11.
    """
    PARTS_M: tl.constexpr = BLOCK // TILE_M
    PARTS_N: tl.constexpr = BLOCK // TILE_N
    part = tl.program_id(0) % (PARTS_M * PARTS_N)
    block_row, block_column = _block_of(tl.program_id(0) // (PARTS_M * PARTS_N), GROUP)
    if block_row <= block_column:
        scale = tl.load(scale_at)
        scale2 = scale * LOG2E
        bias2 = tl.load(bias_at) * LOG2E
        part_row = (part // PARTS_N) * TILE_M
        part_column = (part % PARTS_N) * TILE_N
        first_row = block_row * BLOCK + part_row
        first_column = block_column * BLOCK + part_column
        rows = first_row + tl.arange(0, TILE_M)
        columns = first_column + tl.arange(0, TILE_N)
        plane_row = (_triangle(block_column) + block_row) * BLOCK + part_row
        plane = blocks * BLOCK
        # Tiles that hold diagonal cells or padding drop them: a weight of 0.5 there would cancel only to bf16.
        edge = ((first_row < first_column + TILE_N) & (first_column < first_row + TILE_M)) | (
            tl.maximum(first_row + TILE_M, first_column + TILE_N) > n
        )
        cells = tl.zeros([TILE_M, TILE_N], tl.float32)
        kept0 = tl.zeros([TILE_M, TILE_N], tl.float32)
        kept01 = tl.zeros([TILE_M, TILE_N], tl.int32)
        kept23 = tl.zeros([TILE_M, TILE_N], tl.int32)
        logs = tl.zeros([TILE_M, TILE_N // 8], tl.float32)
        weights = tl.zeros([TILE_M, TILE_N // 8], tl.float32)
        for p in tl.static_range(5):
            for k in tl.range(0 if p == 0 else 32 << p, 64 << p, TILE_K, num_stages=STAGES):
                cells = _dot(xa.load([first_row, k]), xb.load([first_column, k]).T, cells)
            q = tl.load(inverse + p * R + rows)[:, None] * tl.load(inverse + p * R + columns)[None, :]
            z = cells * (q * scale2) + bias2  # logit / ln 2
            if edge:
                live = (rows[:, None] != columns[None, :]) & (rows[:, None] < n) & (columns[None, :] < n)
                z = tl.where(live, z, -1.0e30)
            if EIGHT:
                e = _exp2(z)
                d = 1.0 + e
                logs += _log2(_product_of_eight(tl.reshape(d, [TILE_M, 8, TILE_N // 8])))
            else:
                e = _exp2(tl.minimum(z, 64.0))
                d = 1.0 + e
                logs += tl.sum(tl.reshape(tl.where(z > 64.0, z, _log2(d)), [TILE_M, 8, TILE_N // 8]), 1)
            g = e * _reciprocal(d)
            weights += tl.sum(tl.reshape(g, [TILE_M, 8, TILE_N // 8]), 1)
            w = g * q
            wc = w * cells  # weight times cosine, of the mirrored cell, too
            tl.atomic_add(sums + p * R + rows, tl.sum(wc, 1), sem="relaxed")
            if block_row != block_column:
                tl.atomic_add(sums + p * R + columns, tl.sum(wc, 0), sem="relaxed")
            if p == 0 or p == 2:
                kept0 = w
            elif p == 1:
                kept01 = _pack(w, kept0)
            elif p == 3:
                kept23 = _pack(w, kept0)
            else:
                planes.store([plane_row + 4 * plane, part_column], _bf16(w))
                w = w + _high(kept23)
                planes.store([plane_row + 3 * plane, part_column], _bf16(w))
                w = w + _low(kept23)
                planes.store([plane_row + 2 * plane, part_column], _bf16(w))
                w = w + _high(kept01)
                planes.store([plane_row + plane, part_column], _bf16(w))
                w = w + _low(kept01)
                planes.store([plane_row, part_column], _bf16(w))
        share = 1.0 / (5.0 * n)
        if block_row != block_column:
            share *= 2.0
        tl.atomic_add(results, tl.sum(logs) * LN2 * share, sem="relaxed")
        tl.atomic_add(results + 2, tl.sum(weights) * share, sem="relaxed")


@triton.jit
def _halves(x):
    return tl.split(tl.permute(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), [0, 2, 1]))


@triton.jit
def _write_columns(products, radial, paired, x, dx, rows, first, factor, COLUMNS: tl.constexpr):
    columns = first + tl.arange(0, COLUMNS)
    own = tl.load(x + rows[:, None] * DIMS + columns[None, :]).to(tl.float32)
    other = tl.load(x + (rows ^ 1)[:, None] * DIMS + columns[None, :]).to(tl.float32)
    values = (products - paired[:, None] * other - radial[:, None] * own) * factor
    tl.store(dx + rows[:, None] * DIMS + columns[None, :], _bf16(values))


@triton.jit
def _write(
    products, x, dx, inverse, positive, sums, rows, first, scale, n, R, BAND: tl.constexpr, COLUMNS: tl.constexpr
):
    """dX = 2 scale / (5 n) (W X - paired x_(i^1) - radial x_i), the two coefficients summed over prefixes >= BAND."""
    radial = tl.zeros(rows.shape, tl.float32)
    paired = tl.zeros(rows.shape, tl.float32)
    for p in tl.static_range(BAND, 5):
        own = tl.load(inverse + p * R + rows)
        radial += own * own * (tl.load(sums + p * R + rows) - tl.load(positive + p * R + rows))
        paired += own * tl.load(inverse + p * R + (rows ^ 1))
    factor = 2.0 * scale / (5.0 * n)
    if COLUMNS == 256:  # by quarters, or the epilogue runs out of registers
        left, right = _halves(products)
        a, b = _halves(left)
        c, d = _halves(right)
        _write_columns(a, radial, paired, x, dx, rows, first, factor, 64)
        _write_columns(b, radial, paired, x, dx, rows, first + 64, factor, 64)
        _write_columns(c, radial, paired, x, dx, rows, first + 128, factor, 64)
        _write_columns(d, radial, paired, x, dx, rows, first + 192, factor, 64)
    elif COLUMNS == 128:
        left, right = _halves(products)
        _write_columns(left, radial, paired, x, dx, rows, first, factor, 64)
        _write_columns(right, radial, paired, x, dx, rows, first + 64, factor, 64)
    else:
        _write_columns(products, radial, paired, x, dx, rows, first, factor, COLUMNS)


@triton.jit
def _add_positives(positive, sums, results, scale_at, bias_at, rows, n, R):
    """What the positive pairs change in loss and bias gradient, and all of the scale's gradient."""
    scale = tl.load(scale_at)
    bias = tl.load(bias_at)
    live = (rows < n).to(tl.float32)
    logits = 0.0
    cosines = 0.0
    for p in tl.static_range(5):
        c = tl.load(positive + p * R + rows)
        logits += tl.sum((scale * c + bias) * live)
        cosines += tl.sum((tl.load(sums + p * R + rows) - c) * live)
    share = 1.0 / (5.0 * n)
    tl.atomic_add(results, -logits * share, sem="relaxed")
    tl.atomic_add(results + 1, cosines * share, sem="relaxed")
    tl.atomic_add(results + 2, -5.0 * tl.sum(live) * share, sem="relaxed")


@triton.jit
def _plane_tile(straight, turned, plane_row, block_row, k, inner, TURNED: tl.constexpr):
    """Rows of block row `block_row` from `inner` on, columns from k on, of the plane that starts at `plane_row`."""
    block_column = k // BLOCK
    inner_k = k - block_column * BLOCK
    if TURNED:
        tile = turned.load([plane_row + (_triangle(block_row) + block_column) * BLOCK + inner_k, inner]).T
    else:
        tile = straight.load([plane_row + (_triangle(block_column) + block_row) * BLOCK + inner, inner_k])
    return tile


@triton.jit
def _wide_band(
    straight, turned, xs, plane_row, block_row, inner, column, R,
    TILE_M: tl.constexpr, TILE_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One plane times 256 columns of X: left of the diagonal block its transpose is read, from there on the plane."""
    products = tl.zeros([TILE_M, 256], tl.float32)
    for k in tl.range(0, block_row * BLOCK, TILE_K, num_stages=STAGES):
        tile = _plane_tile(straight, turned, plane_row, block_row, k, inner, True)
        products = _dot(tile, xs.load([k, column]), products)
    for k in tl.range(block_row * BLOCK, R, TILE_K, num_stages=STAGES):
        tile = _plane_tile(straight, turned, plane_row, block_row, k, inner, False)
        products = _dot(tile, xs.load([k, column]), products)
    return products


@triton.jit
def _narrow_bands(
    p2, p1, p0, straight, turned, x128, x64, plane, block_row, low, high, inner,
    TURNED: tl.constexpr, TILE_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The three narrow bands, each from a plane of its own, over k in low .. high."""
    for k in tl.range(low, high, TILE_K, num_stages=STAGES):
        w2 = _plane_tile(straight, turned, 2 * plane, block_row, k, inner, TURNED)
        w1 = _plane_tile(straight, turned, plane, block_row, k, inner, TURNED)
        w0 = _plane_tile(straight, turned, 0, block_row, k, inner, TURNED)
        p2 = _dot(w2, x128.load([k, 128]), p2)
        p1 = _dot(w1, x64.load([k, 64]), p1)
        p0 = _dot(w0, x64.load([k, 0]), p0)
    return p2, p1, p0


@triton.jit
def gradient(
    straight, turned, straight3, turned3, x256, x128, x64, x, dx, inverse, positive, sums, results, scale_at, bias_at,
    n, R, blocks, TILE_M: tl.constexpr, TILE_K: tl.constexpr, TILE_K3: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Four programs of equal work for TILE_M rows: columns 512.., 768.., 256.., and the three narrow bands together."""
    part = tl.program_id(0) % 4
    offset = (tl.program_id(0) // 4) * TILE_M
    block_row = offset // BLOCK
    inner = offset % BLOCK
    rows = offset + tl.arange(0, TILE_M)
    plane = blocks * BLOCK
    scale = tl.load(scale_at)
    if part < 2:
        column = 512 + part * 256
        products = _wide_band(straight, turned, x256, 4 * plane, block_row, inner, column, R, TILE_M, TILE_K, STAGES)
        _write(products, x, dx, inverse, positive, sums, rows, column, scale, n, R, 4, 256)
    elif part == 2:
        products = _wide_band(straight, turned, x256, 3 * plane, block_row, inner, 256, R, TILE_M, TILE_K, STAGES)
        _write(products, x, dx, inverse, positive, sums, rows, 256, scale, n, R, 3, 256)
    else:
        cut = block_row * BLOCK
        p2 = tl.zeros([TILE_M, 128], tl.float32)
        p1 = tl.zeros([TILE_M, 64], tl.float32)
        p0 = tl.zeros([TILE_M, 64], tl.float32)
        p2, p1, p0 = _narrow_bands(
            p2, p1, p0, straight3, turned3, x128, x64, plane, block_row, 0, cut, inner, True, TILE_K3, STAGES
        )
        p2, p1, p0 = _narrow_bands(
            p2, p1, p0, straight3, turned3, x128, x64, plane, block_row, cut, R, inner, False, TILE_K3, STAGES
        )
        _write(p2, x, dx, inverse, positive, sums, rows, 128, scale, n, R, 2, 128)
        _write(p1, x, dx, inverse, positive, sums, rows, 64, scale, n, R, 1, 64)
        _write(p0, x, dx, inverse, positive, sums, rows, 0, scale, n, R, 0, 64)
        _add_positives(positive, sums, results, scale_at, bias_at, rows, n, R)
