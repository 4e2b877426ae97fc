#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/hf/tensor_names.h"

// Tensors of files that hold all experts of a layer. Internal to core/hf.

namespace trainerd::core::hf {

/// Columns [column, column + columns) of an expert's rows, in a dtype.
struct ExpertPart {
  std::string name;  ///< of the tensor
  std::int64_t expert = -1, column = 0, columns = 0;
  kernels::DType dtype = kernels::DType::f32;
  bool by_rows = false;  ///< `values` has a row's columns behind each other, else a column's rows
  std::vector<std::byte> values = {};  ///< rows in their order

  /// Apart from the values.
  bool is(const ExpertPart& other) const {
    return name == other.name && expert == other.expert && column == other.column &&
           columns == other.columns && dtype == other.dtype;
  }
};

/// Writes those rows of `box`, which is in `out`, that are the expert's.
void place_expert(const MappedTensor& tensor, const ExpertPart& part, const io::TensorSlice& box,
                  std::span<std::byte> out);

}  // namespace trainerd::core::hf
