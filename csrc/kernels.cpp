// The kernels, compiled once for each instruction set with GNNCOMM_TABLE naming the result. The loops are written so that the
// compiler makes them vectors; where the plain-PyTorch kernels fuse a product and a sum, so does __builtin_fma, and nothing
// else is fused (-ffp-contract=off): all instruction sets and PyTorch then give the same bits.
//
// Everything here is in an unnamed namespace and no inline function of the standard library is used: the linker would merge
// copies from different instruction sets into one.
#include "table.h"

namespace {

constexpr int64_t kEndsNbytes = 4;
constexpr int64_t kBlock = 256;  // columns worked on at a time, whole bytes of any width

template <typename T>
struct Number;  // a floating-point type beside integers of its size

template <>
struct Number<float> {
    using Int = int32_t;
    using Word = uint32_t;
    static constexpr Int kMax = INT32_MAX;
    static constexpr Int kInfinity = 0x7F800000;
    static float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
};

template <>
struct Number<double> {
    using Int = int64_t;
    using Word = uint64_t;
    static constexpr Int kMax = INT64_MAX;
    static constexpr Int kInfinity = 0x7FF0000000000000;
    static double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
};

template <typename To, typename From>
To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// --- bf16 ------------------------------------------------------------------------------------------------------------

float float_of_bf16(uint16_t bits) { return bit_cast<float>(uint32_t{bits} << 16); }

bool is_finite_bf16(uint16_t bits) { return (bits & 0x7F80) != 0x7F80; }

// The nearest, ties to even.
uint16_t bf16_of_float(float value) {
    const uint32_t bits = bit_cast<uint32_t>(value);
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// The next bf16 towards minus infinity (direction -1) or infinity (+1).
uint16_t next_bf16(uint16_t bits, int direction) {
    if ((bits & 0x7FFF) == 0) return direction < 0 ? 0x8001 : 0x0001;
    const bool is_negative = bits >> 15;
    return uint16_t(bits + (is_negative == (direction < 0) ? 1 : -1));
}

// The nearest bf16 that does not lie inside of an end; never minus zero. The value is no NaN.
template <typename T>
uint16_t outward_bf16(T value, int direction) {
    uint16_t bits = bf16_of_float(float(value));
    const T near = float_of_bf16(bits);
    if (direction < 0 ? near > value : near < value) bits = next_bf16(bits, direction);
    return bits == 0x8000 ? 0 : bits;
}

template <typename T>
void write_outward_ends(const T *row, int64_t num_features, uint8_t *payload) {
    using Int = typename Number<T>::Int;
    // As integers in the order of the numbers, of which NaNs are the outermost: these reductions may be reordered.
    Int lo = Number<T>::kMax, hi = -Number<T>::kMax - 1;
    for (int64_t f = 0; f < num_features; ++f) {
        Int bits;
        __builtin_memcpy(&bits, row + f, sizeof bits);
        bits ^= (bits >> (8 * sizeof bits - 1)) & Number<T>::kMax;
        lo = bits < lo ? bits : lo;
        hi = bits > hi ? bits : hi;
    }
    uint16_t ends[2] = {0x7FC0, 0x7FC0};
    if (hi <= Number<T>::kInfinity && lo >= (-Number<T>::kInfinity - 1)) {
        ends[0] = outward_bf16(bit_cast<T>(Int(lo ^ ((lo >> (8 * sizeof lo - 1)) & Number<T>::kMax))), -1);
        ends[1] = outward_bf16(bit_cast<T>(Int(hi ^ ((hi >> (8 * sizeof hi - 1)) & Number<T>::kMax))), 1);
    }
    __builtin_memcpy(payload, ends, sizeof ends);
}

// --- randomness: reference.py explains ---------------------------------------------------------------------------------

uint64_t mix_64(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

inline float uniform(uint32_t column, uint32_t seed_0, uint32_t seed_1) {
    uint32_t x = seed_0 + column * 0x9E3779B9u;
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = ((x ^ x >> 15) + seed_1) * 0x846CA68Bu;
    x ^= x >> 16;
    return float(int32_t(x) >> 8) * 0x1p-24f + 0.5f;
}

// --- encoding ----------------------------------------------------------------------------------------------------------

// Codes of a byte each, whole bytes of the payload, to `num_bytes` bytes: one product collects the codes of a byte.
template <int bits>
void pack(const uint8_t *codes, int64_t num_bytes, uint8_t *packed) {
    constexpr int per_byte = 8 / bits;
    if constexpr (bits == 8) {
        __builtin_memcpy(packed, codes, uint64_t(num_bytes));
    } else if constexpr (bits == 4) {
        for (int64_t j = 0; j < num_bytes; ++j) packed[j] = uint8_t(codes[2 * j] | codes[2 * j + 1] << 4);
    } else if constexpr (bits == 2) {
        for (int64_t j = 0; j < num_bytes; ++j) {
            uint32_t word;
            __builtin_memcpy(&word, codes + per_byte * j, sizeof word);
            packed[j] = uint8_t(word * 0x01041040u >> 24);
        }
    } else {
        for (int64_t j = 0; j < num_bytes; ++j) {
            uint64_t word;
            __builtin_memcpy(&word, codes + per_byte * j, sizeof word);
            packed[j] = uint8_t(word * 0x0102040810204080u >> 56);
        }
    }
}

template <int bits, typename T>
void encode_row(const T *row, int64_t num_features, uint64_t seed, uint8_t *payload) {
    write_outward_ends(row, num_features, payload);
    uint16_t ends[2];
    __builtin_memcpy(ends, payload, sizeof ends);
    payload += kEndsNbytes;
    const T minus_lo = T(-0.5) * T(float_of_bf16(ends[0]));
    const T half_span = T(0.5) * T(float_of_bf16(ends[1])) + minus_lo;
    const uint32_t seed_0 = uint32_t(seed), seed_1 = uint32_t(seed >> 32);
    constexpr T num_steps = (1 << bits) - 1;
    for (int64_t start = 0; start < num_features; start += kBlock) {
        const int64_t size = num_features - start < kBlock ? num_features - start : kBlock;
        const int64_t num_bytes = (size * bits + 7) / 8;
        alignas(64) uint8_t codes[kBlock];
        for (int64_t i = 0; i < size; ++i) {
            T level = Number<T>::fma(row[start + i], T(0.5), minus_lo) / half_span;
            const float chance = uniform(uint32_t(start + i), seed_0, seed_1);
            if constexpr (bits == 1) {
                codes[i] = chance < level;  // a NaN chooses the lower end
            } else {
                level *= num_steps;
                level = level > T(0) ? level : T(0);  // also for NaN
                level = level < num_steps ? level : num_steps;
                const int32_t whole = int32_t(level);
                codes[i] = uint8_t(whole + (chance < level - T(whole)));
            }
        }
        for (int64_t i = size; i < num_bytes * (8 / bits); ++i) codes[i] = 0;
        pack<bits>(codes, num_bytes, payload + start * bits / 8);
    }
}

template <int bits, typename T>
void encode_rows(const EncodeArguments<T> &a, int64_t first, int64_t last) {
    const int64_t row_nbytes = kEndsNbytes + (a.num_features * bits + 7) / 8;
    const uint64_t offset = mix_64(a.stream);
    for (int64_t r = first; r < last; ++r) {
        const uint64_t seed = mix_64(uint64_t(a.key[r * a.key_stride]) * 0x9E3779B97F4A7C15u + offset);
        encode_row<bits>(a.rows + r * a.row_stride, a.num_features, seed, a.payload + r * row_nbytes);
    }
}

template <typename T>
void encode(const EncodeArguments<T> &a, int64_t first, int64_t last) {
    switch (a.bits) {
        case 1: return encode_rows<1>(a, first, last);
        case 2: return encode_rows<2>(a, first, last);
        case 4: return encode_rows<4>(a, first, last);
        default: return encode_rows<8>(a, first, last);
    }
}

// --- decoding ----------------------------------------------------------------------------------------------------------

template <typename T>
T number_of_bf16(uint16_t bits) {
    return T(float_of_bf16(bits));
}

template <>
uint16_t number_of_bf16<uint16_t>(uint16_t bits) {
    return bits;
}

template <typename T>
struct Ends {
    T lo, hi;
};

// One end that is not finite makes both NaN.
template <typename T>
Ends<T> read_ends(const uint8_t *payload) {
    uint16_t ends[2];
    __builtin_memcpy(ends, payload, sizeof ends);
    if (!is_finite_bf16(ends[0]) || !is_finite_bf16(ends[1])) ends[0] = ends[1] = 0x7FC0;
    return {number_of_bf16<T>(ends[0]), number_of_bf16<T>(ends[1])};
}

template <typename Word>
void select_row(const uint8_t *packed, int64_t num_features, Word lo, Word hi, Word *row) {
    const int64_t num_whole = num_features / 8;
    for (int64_t j = 0; j < num_whole; ++j) {
        for (int i = 0; i < 8; ++i) row[8 * j + i] = (Word(packed[j]) & Word(1 << i)) ? hi : lo;
    }
    for (int64_t f = 8 * num_whole; f < num_features; ++f) row[f] = packed[f / 8] >> f % 8 & 1 ? hi : lo;
}

// The level of a code, as torch.lerp computes it between halved ends.
template <int bits, typename T>
T level_of(T half_lo, T half_hi, T code) {
    const T share = code / T((1 << bits) - 1);
    const T span = half_hi - half_lo;
    const bool is_upper = share >= T(0.5);
    return Number<T>::fma(is_upper ? share - T(1) : share, span, is_upper ? half_hi : half_lo) * T(2);
}

template <int bits, typename T>
void interpolate_row(const uint8_t *packed, int64_t num_features, Ends<T> ends, T *row) {
    const T half_lo = ends.lo * T(0.5), half_hi = ends.hi * T(0.5);
    if constexpr (bits == 8) {
        for (int64_t f = 0; f < num_features; ++f) row[f] = level_of<bits>(half_lo, half_hi, T(packed[f]));
    } else {
        constexpr int per_byte = 8 / bits, mask = (1 << bits) - 1;
        T levels[1 << bits];
        for (int code = 0; code <= mask; ++code) levels[code] = level_of<bits>(half_lo, half_hi, T(code));
        const int64_t num_whole = num_features / per_byte;
        for (int64_t j = 0; j < num_whole; ++j) {
            for (int i = 0; i < per_byte; ++i) row[per_byte * j + i] = levels[packed[j] >> bits * i & mask];
        }
        for (int64_t f = per_byte * num_whole; f < num_features; ++f) {
            row[f] = levels[packed[f / per_byte] >> f % per_byte * bits & mask];
        }
    }
}

template <typename T, typename Word>
void select_rows(const DecodeArguments<T> &a, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
        const uint8_t *payload = a.payload + r * a.row_stride;
        const Ends<T> ends = read_ends<T>(payload);
        select_row(payload + kEndsNbytes, a.num_features, bit_cast<Word>(ends.lo), bit_cast<Word>(ends.hi),
                   reinterpret_cast<Word *>(a.rows) + r * a.num_features);
    }
}

template <int bits, typename T>
void interpolate_rows(const DecodeArguments<T> &a, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
        const uint8_t *payload = a.payload + r * a.row_stride;
        interpolate_row<bits>(payload + kEndsNbytes, a.num_features, read_ends<T>(payload), a.rows + r * a.num_features);
    }
}

template <typename T>
void decode(const DecodeArguments<T> &a, int64_t first, int64_t last) {
    switch (a.bits) {
        case 1: return select_rows<T, typename Number<T>::Word>(a, first, last);
        case 2: return interpolate_rows<2>(a, first, last);
        case 4: return interpolate_rows<4>(a, first, last);
        default: return interpolate_rows<8>(a, first, last);
    }
}

}  // namespace

extern const Table GNNCOMM_TABLE;
const Table GNNCOMM_TABLE = {encode<float>, encode<double>, decode<float>, decode<double>, select_rows<uint16_t, uint16_t>};
