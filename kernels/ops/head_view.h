#pragma once

// Heads of queries, keys and values: their number and their layout.

#include <cstdint>

#include "kernels/tensor/tensor.h"

namespace trainerd::kernels {

/// Heads inside wider rows: element e of head h of row t is data[t * row_stride + h * head_size + e]. A
/// copyable view like a tensor: a part of a merged projection, or a buffer of its own.
struct HeadView {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0, heads = 0, head_size = 0;
  std::int64_t row_stride = 0;  ///< elements between starts of rows

  bool defined() const { return row_stride > 0; }
  /// Bytes of the heads, without gaps between them.
  std::int64_t bytes() const { return rows * heads * head_size * size_of(dtype); }

  bool operator==(const HeadView&) const = default;
};

/// View of `heads` heads of `head_size` elements each, from column `first` of `x_TC` on.
inline HeadView heads_from(const Tensor& x_TC, std::int64_t first, std::int64_t heads,
                           std::int64_t head_size) {
  base::check(x_TC.shape.ndim == 2 && first + heads * head_size <= x_TC.size(1),
              "heads: a row is as wide as its heads");
  return {.data = x_TC.data + first * size_of(x_TC.dtype),
          .dtype = x_TC.dtype,
          .rows = x_TC.size(0),
          .heads = heads,
          .head_size = head_size,
          .row_stride = x_TC.size(1)};
}

/// Heads of a merged projection: a row of `qkv` has H query heads, then K key heads, of E elements each, then
/// K value heads of Ev elements. H is a multiple of K; query head h uses key head h / (H / K).
struct HeadGeometry {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;   ///< E
  std::int64_t value_size = 0;  ///< Ev; 0: E

  std::int64_t values_size() const { return value_size > 0 ? value_size : head_size; }
  std::int64_t query_columns() const { return heads * head_size; }
  std::int64_t key_columns() const { return kv_heads * head_size; }
  std::int64_t value_columns() const { return kv_heads * values_size(); }
  std::int64_t output_columns() const { return heads * values_size(); }
  std::int64_t columns() const { return query_columns() + key_columns() + value_columns(); }

  // Views of the parts of a merged projection `qkv` [T, columns], and of the heads of `out` [T, H * Ev].
  HeadView queries_of(const Tensor& qkv) const { return heads_from(qkv, 0, heads, head_size); }
  HeadView keys_of(const Tensor& qkv) const { return heads_from(qkv, query_columns(), kv_heads, head_size); }
  HeadView values_of(const Tensor& qkv) const {
    return heads_from(qkv, query_columns() + key_columns(), kv_heads, values_size());
  }
  HeadView outputs_of(const Tensor& out_THE) const { return heads_from(out_THE, 0, heads, values_size()); }

  bool operator==(const HeadGeometry&) const = default;
};

}  // namespace trainerd::kernels
