// What each instruction set provides: kernels for the rows from `first` to before `last`.
#pragma once
#include <stdint.h>

template <typename T>
struct EncodeArguments {
    const T *rows;
    int64_t row_stride, num_features;
    int bits;
    const int64_t *key;
    int64_t key_stride;
    uint64_t stream;
    uint8_t *payload;
};

template <typename T>
struct DecodeArguments {
    const uint8_t *payload;
    int64_t row_stride, num_features;
    int bits;
    T *rows;
};

struct Table {
    void (*encode_f32)(const EncodeArguments<float> &, int64_t first, int64_t last);
    void (*encode_f64)(const EncodeArguments<double> &, int64_t first, int64_t last);
    void (*decode_f32)(const DecodeArguments<float> &, int64_t first, int64_t last);
    void (*decode_f64)(const DecodeArguments<double> &, int64_t first, int64_t last);
    void (*decode_bf16)(const DecodeArguments<uint16_t> &, int64_t first, int64_t last);
};

extern const Table table_portable, table_avx2, table_avx512;
