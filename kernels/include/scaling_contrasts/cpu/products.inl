// Products and packing of one instruction set. A product adds `left x right` over pairs to a tile of 8 x 32 floats.

#if SC_BF16_PRODUCTS
using pair_t = std::uint32_t;  ///< two bf16
#else
struct pair_t {
    float even, odd;
};
#endif

SC_INLINE pair_t make_pair(std::uint16_t even, std::uint16_t odd) {
    auto const low = std::uint32_t{even}, high = std::uint32_t{odd};
#if SC_BF16_PRODUCTS
    return low | high << 16;
#else
    return {__builtin_bit_cast(float, low << 16), __builtin_bit_cast(float, high << 16)};
#endif
}

/// c[8][32] += left * right. `left` holds row r's pair k at `[r * row_step + k * pair_step]`.
template <int row_step, int pair_step>
SC_INLINE void multiply(float* __restrict c, std::int64_t c_stride, pair_t const* __restrict left,
                        std::uint32_t const* __restrict right, int pairs) {
    constexpr int rows_k = lanes_k == 16 ? 8 : 4;  // what the registers hold
    constexpr int wide_k = 2;
    for (int r0 = 0; r0 < tile_rows_k; r0 += rows_k)
        for (int v0 = 0; v0 < vectors_k; v0 += wide_k) {
            float* const corner = c + r0 * c_stride + v0 * lanes_k;
            pair_t const* const a = left + r0 * row_step;
            std::uint32_t const* const b = right + v0 * lanes_k;
#pragma GCC unroll 8
            for (int r = 0; r < rows_k; ++r)
                __builtin_prefetch(corner + r * c_stride, 1), __builtin_prefetch(corner + r * c_stride + 16, 1);
            vector_t sum[rows_k][wide_k] = {};
            for (int k = 0; k < pairs; ++k) {
#if SC_BF16_PRODUCTS
                __m512bh const b0 = (__m512bh)_mm512_loadu_si512(b + k * panel_k);
                __m512bh const b1 = (__m512bh)_mm512_loadu_si512(b + k * panel_k + lanes_k);
#pragma GCC unroll 8
                for (int r = 0; r < rows_k; ++r) {
                    __m512bh const both =
                        (__m512bh)_mm512_set1_epi32(static_cast<int>(a[r * row_step + k * pair_step]));
                    sum[r][0] = _mm512_dpbf16_ps(sum[r][0], both, b0);
                    sum[r][1] = _mm512_dpbf16_ps(sum[r][1], both, b1);
                }
#else
                vector_t even[wide_k], odd[wide_k];
#pragma GCC unroll 2
                for (int v = 0; v < wide_k; ++v) {
                    auto const words = load<words_t>(b + k * panel_k + v * lanes_k);
                    even[v] = cast<vector_t>(words << 16);
                    odd[v] = cast<vector_t>(words & 0xffff0000u);
                }
#pragma GCC unroll 8
                for (int r = 0; r < rows_k; ++r) {
                    pair_t const& pair = a[r * row_step + k * pair_step];
#pragma GCC unroll 2
                    for (int v = 0; v < wide_k; ++v) sum[r][v] += pair.even * even[v];
#pragma GCC unroll 2
                    for (int v = 0; v < wide_k; ++v) sum[r][v] += pair.odd * odd[v];
                }
#endif
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows_k; ++r)
#pragma GCC unroll 2
                for (int v = 0; v < wide_k; ++v) {
                    float* const at = corner + r * c_stride + v * lanes_k;
                    store(at, load(at) + sum[r][v]);
                }
        }
}

/// Calls `put(pair * width + r, even bits, odd bits)` for the pairs of all bands of `width` rows from `row` on, a few
/// pairs of all rows at a time, so that what is written stays in the first-level cache. Rows past the view are zero.
template <int width, class put_t>
SC_INLINE void pack_rows(packed_ladder_t const& ladder, matrix_view_t const& x, std::int64_t row, put_t&& put) {
    constexpr int together_k = 32;
    for (int band = 0; band < ladder.count; ++band) {
        auto const [begin, end] = ladder.bands[static_cast<std::size_t>(band)];
        int const first = ladder.pair_begin[static_cast<std::size_t>(band)], whole = (end - begin) / 2;
        for (int k0 = 0; k0 < whole; k0 += together_k)
            for (int r = 0; r < width; ++r) {
                bool const there = row + r < x.rows;
                bf16_t const* const from = there ? x.row(row + r) + begin : nullptr;
                for (int k = k0; k < std::min(k0 + together_k, whole); ++k)
                    put((first + k) * width + r, there ? from[2 * k].bits : std::uint16_t{0},
                        there ? from[2 * k + 1].bits : std::uint16_t{0});
            }
        if ((end - begin) % 2)
            for (int r = 0; r < width; ++r)
                put((first + whole) * width + r, row + r < x.rows ? x.row(row + r)[end - 1].bits : std::uint16_t{0},
                    std::uint16_t{0});
    }
}

inline void pack_left(packed_ladder_t const& ladder, matrix_view_t const& x, std::int64_t row, void* out) {
    auto* const pairs = static_cast<pair_t*>(out);
    pack_rows<tile_rows_k>(ladder, x, row, [=](int at, std::uint16_t even, std::uint16_t odd) SC_TARGET {
        pairs[at] = make_pair(even, odd);
    });
}

#if SC_AVX512
// The maskz forms, with full masks, are the plain instructions; the plain intrinsics make GCC warn of its own header.
/// 16 x 16 words transposed: rows of a bf16 matrix, pairs of columns in, lanes of candidates out.
SC_INLINE void transpose_pairs(bf16_t const* from, std::int64_t stride, std::uint32_t* out) {
    __m512i rows[16], mixed[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) rows[i] = _mm512_loadu_si512(from + i * stride);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        mixed[i] = _mm512_maskz_unpacklo_epi32(0xffff, rows[i], rows[i + 1]);
        mixed[i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        rows[i] = _mm512_maskz_unpacklo_epi64(0xff, mixed[i], mixed[i + 2]);
        rows[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, mixed[i], mixed[i + 2]);
        rows[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, mixed[i + 1], mixed[i + 3]);
        rows[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, mixed[i + 1], mixed[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // quarter q of vector 4 g + i holds word 4 q + i of rows 4 g .. 4 g + 3
        __m512i const even_low = _mm512_maskz_shuffle_i32x4(0xffff, rows[i], rows[i + 4], 0x88);
        __m512i const odd_low = _mm512_maskz_shuffle_i32x4(0xffff, rows[i], rows[i + 4], 0xdd);
        __m512i const even_high = _mm512_maskz_shuffle_i32x4(0xffff, rows[i + 8], rows[i + 12], 0x88);
        __m512i const odd_high = _mm512_maskz_shuffle_i32x4(0xffff, rows[i + 8], rows[i + 12], 0xdd);
        _mm512_storeu_si512(out + i * panel_k, _mm512_maskz_shuffle_i32x4(0xffff, even_low, even_high, 0x88));
        _mm512_storeu_si512(out + (i + 4) * panel_k, _mm512_maskz_shuffle_i32x4(0xffff, odd_low, odd_high, 0x88));
        _mm512_storeu_si512(out + (i + 8) * panel_k, _mm512_maskz_shuffle_i32x4(0xffff, even_low, even_high, 0xdd));
        _mm512_storeu_si512(out + (i + 12) * panel_k, _mm512_maskz_shuffle_i32x4(0xffff, odd_low, odd_high, 0xdd));
    }
}

/// Whether every band is whole blocks of 16 pairs.
SC_INLINE bool bands_are_wide(packed_ladder_t const& ladder) {
    for (int band = 0; band < ladder.count; ++band)
        if (ladder.bands[static_cast<std::size_t>(band)].end % 32) return false;
    return true;
}
#endif

inline void pack_right(packed_ladder_t const& ladder, matrix_view_t const& x, std::int64_t row, std::uint32_t* out) {
#if SC_AVX512
    if (row + panel_k <= x.rows && bands_are_wide(ladder)) {
        for (int pair = 0; pair < ladder.pairs(); pair += 16)
            for (int half = 0; half < panel_k; half += 16)
                transpose_pairs(x.row(row + half) + 2 * pair, x.stride, out + pair * panel_k + half);
        return;
    }
#endif
    pack_rows<panel_k>(ladder, x, row, [=](int at, std::uint16_t even, std::uint16_t odd) SC_TARGET {
        out[at] = even | std::uint32_t{odd} << 16;
    });
}

inline void pack_panel(packed_ladder_t const& ladder, matrix_view_t const& x, std::int64_t row, int panel,
                       std::uint32_t* out) {
    auto const [begin, end] = ladder.columns_of_panel(panel);
    int const width = end - begin;
    for (int pair = 0; pair < block_k / 2; ++pair, out += panel_k) {
        std::int64_t const even = row + 2 * pair;
        std::uint16_t rows[2][panel_k] = {};
        for (int r = 0; r < 2; ++r)
            if (even + r < x.rows)
                __builtin_memcpy(rows[r], x.row(even + r) + begin, static_cast<std::size_t>(width) * 2);
        for (int c = 0; c < panel_k; ++c) out[c] = rows[0][c] | std::uint32_t{rows[1][c]} << 16;
    }
}

/// One row of the gradient: scale * (accumulated - toward[band] * x), out of its panels; columns past the ladder are
/// zero.
template <class gradient_t>
SC_INLINE void write_row_as(packed_ladder_t const& ladder, float const* accumulated, bf16_t const* x,
                            float const* toward, float scale, gradient_t* out) {
    for (int panel = 0; panel < ladder.panels(); ++panel, accumulated += panel_k) {
        band_t const columns = ladder.columns_of_panel(panel);
        float const pull = toward[ladder.band_of_panel(panel)];
        for (int c = 0; c < columns.end - columns.begin; ++c) {
            float const value = scale * (accumulated[c] - pull * static_cast<float>(x[columns.begin + c]));
            out[columns.begin + c] = gradient_t(value);
        }
    }
    for (int c = ladder.columns(); c < ladder.dims; ++c) out[c] = gradient_t(0.0f);
}

inline void write_row(packed_ladder_t const& ladder, float const* accumulated, bf16_t const* x, float const* toward,
                      float scale, gradient_type_t type, void* out) {
    if (type == gradient_type_t::float32_k)
        write_row_as(ladder, accumulated, x, toward, scale, static_cast<float*>(out));
    else write_row_as(ladder, accumulated, x, toward, scale, static_cast<bf16_t*>(out));
}

inline float square_sum(bf16_t const* row, int begin, int end) {
    vector_t sums = {};
    int column = begin;
    for (; column + lanes_k <= end; column += lanes_k) {
        vector_t value;
        for (int i = 0; i < lanes_k; ++i) value[i] = static_cast<float>(row[column + i]);
        sums += value * value;
    }
    float sum = sum_of(sums);
    for (; column < end; ++column) sum += static_cast<float>(row[column]) * static_cast<float>(row[column]);
    return sum;
}
