// C ABI of the native CPU kernels. Layouts of the bytes: lightning_gnncomm/kernels/ops.py.
//
// Pointers are to host memory that holds what the shapes say; strides count elements. Functions return 0, or -1 where an
// argument is outside its range, and then write nothing. Nothing is kept between calls, and no exception leaves.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// Number of this interface; the loader refuses another.
int gnncomm_abi_version(void);

// Uses the instruction set of this level (0 portable, 1 AVX2, 2 AVX-512) or the best below it that the machine has, and
// returns the level in force. Without a call it is the best one. Not for use while kernels run.
int gnncomm_use_level(int level);

// Rows [R, F] of row stride `row_stride`, keys [R], to a contiguous payload [R, 4 + ceil(F bits / 8)].
int gnncomm_encode_f32(const float *rows, int64_t row_stride, int64_t num_rows, int64_t num_features, int bits,
                       const int64_t *key, int64_t key_stride, uint64_t stream, uint8_t *payload, int num_threads);
int gnncomm_encode_f64(const double *rows, int64_t row_stride, int64_t num_rows, int64_t num_features, int bits,
                       const int64_t *key, int64_t key_stride, uint64_t stream, uint8_t *payload, int num_threads);

// A payload [R, 4 + ceil(F bits / 8)] of row stride `row_stride` to contiguous rows [R, F]. bf16 takes one bit only.
int gnncomm_decode_f32(const uint8_t *payload, int64_t row_stride, int64_t num_rows, int64_t num_features, int bits,
                       float *rows, int num_threads);
int gnncomm_decode_f64(const uint8_t *payload, int64_t row_stride, int64_t num_rows, int64_t num_features, int bits,
                       double *rows, int num_threads);
int gnncomm_decode_bf16(const uint8_t *payload, int64_t row_stride, int64_t num_rows, int64_t num_features, int bits,
                        uint16_t *rows, int num_threads);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
