// The C ABI: checks of arguments, choice of the instruction set, and threads.
#include "gnncomm.h"

#include <system_error>
#include <thread>
#include <vector>

#include "table.h"

namespace {

constexpr int64_t kValuesPerThread = 1 << 16;  // a thread takes some 20 us to start, in which this many are encoded

int best_level() {
#ifdef GNNCOMM_X86
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return 2;
    return has_avx2;
#else
    return 0;
#endif
}

int level_in_force = best_level();

const Table &table() {
#ifdef GNNCOMM_X86
    if (level_in_force == 2) return table_avx512;
    if (level_in_force == 1) return table_avx2;
#endif
    return table_portable;
}

template <typename Arguments>
void run(void (*kernel)(const Arguments &, int64_t, int64_t), const Arguments &arguments, int64_t num_rows, int num_threads) {
    const int64_t num_useful = num_rows * arguments.num_features / kValuesPerThread;
    const int64_t num_parts = num_threads < num_useful ? num_threads : num_useful;
    if (num_parts <= 1) return kernel(arguments, 0, num_rows);
    const int64_t size = (num_rows + num_parts - 1) / num_parts;
    std::vector<std::thread> threads;
    int64_t first = 0;
    try {
        for (; first + size < num_rows; first += size) threads.emplace_back(kernel, std::cref(arguments), first, first + size);
    } catch (const std::system_error &) {
        // No more threads are to be had: the caller's does the rest.
    }
    kernel(arguments, first, num_rows);
    for (std::thread &thread : threads) thread.join();
}

bool are_bits(int bits) { return bits == 1 || bits == 2 || bits == 4 || bits == 8; }

template <typename T>
int encode(void (*kernel)(const EncodeArguments<T> &, int64_t, int64_t), const EncodeArguments<T> &arguments,
           int64_t num_rows, int num_threads) {
    if (!are_bits(arguments.bits) || num_rows < 0 || arguments.num_features < 1) return -1;
    run(kernel, arguments, num_rows, num_threads);
    return 0;
}

template <typename T>
int decode(void (*kernel)(const DecodeArguments<T> &, int64_t, int64_t), const DecodeArguments<T> &arguments,
           int64_t num_rows, int num_threads) {
    if (!are_bits(arguments.bits) || num_rows < 0 || arguments.num_features < 1) return -1;
    run(kernel, arguments, num_rows, num_threads);
    return 0;
}

}  // namespace

extern "C" {

int gnncomm_abi_version(void) { return 1; }

int gnncomm_use_level(int level) {
    const int best = best_level();
    level_in_force = level < 0 ? 0 : level < best ? level : best;
    return level_in_force;
}

int gnncomm_encode_f32(const float *rows, int64_t row_stride, int64_t num_rows, int64_t num_features, int bits,
                       const int64_t *key, int64_t key_stride, uint64_t stream, uint8_t *payload, int num_threads) {
    return encode<float>(table().encode_f32, {rows, row_stride, num_features, bits, key, key_stride, stream, payload}, num_rows,
                         num_threads);
}

int gnncomm_encode_f64(const double *rows, int64_t row_stride, int64_t num_rows, int64_t num_features, int bits,
                       const int64_t *key, int64_t key_stride, uint64_t stream, uint8_t *payload, int num_threads) {
    return encode<double>(table().encode_f64, {rows, row_stride, num_features, bits, key, key_stride, stream, payload}, num_rows,
                          num_threads);
}

int gnncomm_decode_f32(const uint8_t *payload, int64_t row_stride, int64_t num_rows, int64_t num_features, int bits,
                       float *rows, int num_threads) {
    return decode<float>(table().decode_f32, {payload, row_stride, num_features, bits, rows}, num_rows, num_threads);
}

int gnncomm_decode_f64(const uint8_t *payload, int64_t row_stride, int64_t num_rows, int64_t num_features, int bits,
                       double *rows, int num_threads) {
    return decode<double>(table().decode_f64, {payload, row_stride, num_features, bits, rows}, num_rows, num_threads);
}

int gnncomm_decode_bf16(const uint8_t *payload, int64_t row_stride, int64_t num_rows, int64_t num_features, int bits,
                        uint16_t *rows, int num_threads) {
    if (bits != 1) return -1;
    return decode<uint16_t>(table().decode_bf16, {payload, row_stride, num_features, bits, rows}, num_rows, num_threads);
}

}  // extern "C"
