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
            for (int r = 0; r < rows_k; ++r) __builtin_prefetch(corner + r * c_stride, 1), __builtin_prefetch(corner + r * c_stride + 16, 1);
            vector_t sum[rows_k][wide_k] = {};
            for (int k = 0; k < pairs; ++k) {
#if SC_BF16_PRODUCTS
                __m512bh const b0 = (__m512bh)_mm512_loadu_si512(b + k * panel_k);
                __m512bh const b1 = (__m512bh)_mm512_loadu_si512(b + k * panel_k + lanes_k);
#pragma GCC unroll 8
                for (int r = 0; r < rows_k; ++r) {
                    __m512bh const both = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[r * row_step + k * pair_step]));
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

/// Calls `put(pair number, even column, odd column or -1)` for the pairs of all bands.
template <class put_t>
SC_INLINE void for_pairs(packed_ladder_t const& ladder, put_t&& put) {
    for (int band = 0; band < ladder.count; ++band) {
        auto const [begin, end] = ladder.bands[static_cast<std::size_t>(band)];
        int pair = ladder.pair_begin[static_cast<std::size_t>(band)];
        for (int column = begin; column < end; column += 2, ++pair) put(pair, column, column + 1 < end ? column + 1 : -1);
    }
}

inline void pack_left(packed_ladder_t const& ladder, matrix_view_t const& x, std::int64_t row, void* out) {
    auto* const pairs = static_cast<pair_t*>(out);
    for (int r = 0; r < tile_rows_k; ++r) {
        bf16_t const* const from = row + r < x.rows ? x.row(row + r) : nullptr;
        for_pairs(ladder, [&](int pair, int even, int odd) {
            pairs[pair * tile_rows_k + r] =
                from ? make_pair(from[even].bits, odd < 0 ? std::uint16_t{0} : from[odd].bits) : pair_t{};
        });
    }
}

inline void pack_right(packed_ladder_t const& ladder, matrix_view_t const& x, std::int64_t row, std::uint32_t* out) {
    for (int r = 0; r < panel_k; ++r) {
        bf16_t const* const from = row + r < x.rows ? x.row(row + r) : nullptr;
        for_pairs(ladder, [&](int pair, int even, int odd) {
            std::uint32_t const high = from && odd >= 0 ? from[odd].bits : 0u;
            out[pair * panel_k + r] = (from ? from[even].bits : 0u) | high << 16;
        });
    }
}

inline void pack_panel(packed_ladder_t const& ladder, matrix_view_t const& x, std::int64_t row, int panel,
                       std::uint32_t* out) {
    auto const [begin, end] = ladder.columns_of_panel(panel);
    int const width = end - begin;
    for (int pair = 0; pair < block_k / 2; ++pair, out += panel_k) {
        std::int64_t const even = row + 2 * pair;
        std::uint16_t rows[2][panel_k] = {};
        for (int r = 0; r < 2; ++r)
            if (even + r < x.rows) __builtin_memcpy(rows[r], x.row(even + r) + begin, static_cast<std::size_t>(width) * 2);
        for (int c = 0; c < panel_k; ++c) out[c] = rows[0][c] | std::uint32_t{rows[1][c]} << 16;
    }
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
