// Vectors of `lanes_k` floats as the compiler's vector extension, inside the namespace of one instruction set
// (targets.hpp): operators come with the type, here is the rest.

typedef float vector_t __attribute__((vector_size(4 * lanes_k)));
typedef std::int32_t integers_t __attribute__((vector_size(4 * lanes_k)));
typedef std::uint32_t words_t __attribute__((vector_size(4 * lanes_k)));

inline constexpr int vectors_k = panel_k / lanes_k;  ///< of one row of a tile

template <class to_t, class from_t>
SC_INLINE to_t cast(from_t const& from) {
    static_assert(sizeof(to_t) == sizeof(from_t));
    return __builtin_bit_cast(to_t, from);
}

template <class to_t = vector_t>
SC_INLINE to_t load(void const* from) {
    to_t value;
    __builtin_memcpy(&value, from, sizeof(value));
    return value;
}

template <class from_t>
SC_INLINE void store(void* to, from_t const& value) {
    __builtin_memcpy(to, &value, sizeof(value));
}

SC_INLINE vector_t broadcast(float value) { return vector_t{} + value; }
SC_INLINE vector_t greater(vector_t a, vector_t b) { return a > b ? a : b; }

SC_INLINE float sum_of(vector_t value) {
    float sum = 0;
    for (int i = 0; i < lanes_k; ++i) sum += value[i];
    return sum;
}

SC_INLINE float greatest_of(vector_t value) {
    float most = value[0];
    for (int i = 1; i < lanes_k; ++i) most = value[i] > most ? value[i] : most;
    return most;
}

SC_INLINE bool any_of(integers_t mask) {
    typedef long long longs_t __attribute__((vector_size(4 * lanes_k)));
    auto const words = cast<longs_t>(mask);
    long long any = 0;
    for (int i = 0; i < lanes_k / 2; ++i) any |= words[i];
    return any != 0;
}

/// 2^x for x <= 0 (any x below 127 works); x below -126 counts as -126. Relative error below 3e-7.
/// The fraction's polynomial is the Taylor series of 2^f on [-1/2, 1/2], up to f^6.
SC_INLINE vector_t exp2_of(vector_t x) {
    constexpr float round_k = 12582912.0f;  // 1.5 * 2^23: adding it leaves the integer part in the low bits
    x = x < -126.0f ? broadcast(-126.0f) : x;
    vector_t const shifted = x + round_k;
    vector_t const f = x - (shifted - round_k);
    vector_t power = f * 1.5403530e-4f + 1.3333558e-3f;
    power = f * power + 9.6181291e-3f;
    power = f * power + 5.5504109e-2f;
    power = f * power + 2.4022651e-1f;
    power = f * power + 6.9314718e-1f;
    power = f * power + 1.0f;
    return cast<vector_t>(cast<integers_t>(power) + (cast<integers_t>(shifted) << 23));
}
