#include "io/checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

using Index = std::vector<std::int64_t>;

std::int64_t elements_of(const Index& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

/// Returns the index in the tensor of element `i` of a row-major box.
Index place_of(const TensorSlice& box, std::int64_t i) {
  Index at = box.begin;
  for (std::size_t d = at.size(); d-- > 0; i /= box.shape[d]) at[d] += i % box.shape[d];
  return at;
}

template <class T>
void widen(std::span<const std::byte> raw, std::vector<double>& out) {
  out.resize(raw.size() / sizeof(T));
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, raw.data() + i * sizeof(T), sizeof(T));
    if constexpr (sizeof(T) == 2) out[i] = static_cast<double>(kernels::to_float(value));
    else out[i] = static_cast<double>(value);
  }
}

std::span<std::byte> sized(std::vector<std::byte>& bytes, const TensorSlice& box) {
  bytes.resize(static_cast<std::size_t>(tensor_bytes(box.dtype, box.shape)));
  return bytes;
}

/// Compares one tensor that has the same dtype and shape in two checkpoints.
class Pair {
 public:
  Pair(CheckpointReader& a, CheckpointReader& b) : a_(a), b_(b) {}

  TensorDifference compare(const TensorSlice& whole) {
    TensorDifference found{.name = whole.name, .elements = elements_of(whole.shape)};
    double most = 0;
    for_each_piece(whole, kTensorPieceBytes, [&](const TensorSlice& piece) { add(piece, found, most); });
    if (found.unequal > 0)
      found.relative = found.largest == 0 ? 0
                       : most > 0         ? found.largest / most
                                          : std::numeric_limits<double>::infinity();
    return found;
  }

 private:
  void add(const TensorSlice& piece, TensorDifference& found, double& most) {
    a_.read(piece, sized(bytes_a_, piece));
    b_.read(piece, sized(bytes_b_, piece));
    to_doubles(piece.dtype, bytes_a_, x_);
    for (const double x : x_)
      if (std::isfinite(x)) most = std::max(most, std::abs(x));
    if (bytes_a_ == bytes_b_) return;
    to_doubles(piece.dtype, bytes_b_, y_);
    const auto size = static_cast<std::size_t>(kernels::size_of(piece.dtype));
    for (std::size_t i = 0; i < x_.size(); ++i) {
      if (std::memcmp(bytes_a_.data() + i * size, bytes_b_.data() + i * size, size) == 0) continue;
      // NaN in both, with different bits: computations cannot tell them apart.
      double difference = std::isnan(x_[i]) && std::isnan(y_[i]) ? 0 : std::abs(x_[i] - y_[i]);
      if (std::isnan(difference)) difference = std::numeric_limits<double>::infinity();
      if (found.unequal++ == 0 || difference > found.largest) {
        found.largest = difference;
        found.at = place_of(piece, static_cast<std::int64_t>(i));
      }
    }
  }

  CheckpointReader& a_;
  CheckpointReader& b_;
  std::vector<std::byte> bytes_a_, bytes_b_;
  std::vector<double> x_, y_;
};

std::string text_of(const TensorSlice& tensor) {
  std::string text = kernels::name_of(tensor.dtype);
  for (std::size_t d = 0; d < tensor.logical_shape.size(); ++d)
    text += (d == 0 ? " " : " x ") + std::to_string(tensor.logical_shape[d]);
  return text;
}

}  // namespace

void for_each_piece(const TensorSlice& box, std::int64_t most_bytes,
                    const std::function<void(const TensorSlice& piece)>& take) {
  if (elements_of(box.shape) == 0) return;
  const std::int64_t bytes = tensor_bytes(box.dtype, box.shape);
  // Splits the first dimension of size above 1; dimensions before it do not divide the box.
  std::size_t d = 0;
  while (d < box.shape.size() && box.shape[d] == 1) ++d;
  if (bytes <= most_bytes || d == box.shape.size()) return take(box);
  const std::int64_t row_bytes = bytes / box.shape[d],
                     step = std::max<std::int64_t>(1, most_bytes / std::max<std::int64_t>(1, row_bytes));
  TensorSlice piece = box;
  for (std::int64_t row = 0; row < box.shape[d]; row += step) {
    piece.begin[d] = box.begin[d] + row;
    piece.shape[d] = std::min(step, box.shape[d] - row);
    for_each_piece(piece, most_bytes, take);
  }
}

void to_doubles(kernels::DType dtype, std::span<const std::byte> raw, std::vector<double>& out) {
  switch (dtype) {
    case kernels::DType::f32: return widen<float>(raw, out);
    case kernels::DType::bf16: return widen<kernels::Bf16>(raw, out);
    case kernels::DType::f16: return widen<kernels::Fp16>(raw, out);
    case kernels::DType::i32: return widen<std::int32_t>(raw, out);
    case kernels::DType::f64: return widen<double>(raw, out);
    case kernels::DType::u8: return widen<std::uint8_t>(raw, out);
  }
}

std::vector<TensorSlice> whole_tensors(const Manifest& manifest) {
  std::map<std::string, TensorSlice> tensors;
  for (const auto& [shard, slice] : manifest.slices)
    tensors.try_emplace(slice.name, TensorSlice{.name = slice.name,
                                                .dtype = slice.dtype,
                                                .logical_shape = slice.logical_shape,
                                                .begin = Index(slice.logical_shape.size(), 0),
                                                .shape = slice.logical_shape});
  std::vector<TensorSlice> all;
  for (auto& [name, tensor] : tensors) all.push_back(std::move(tensor));
  return all;
}

Comparison compare_checkpoints(CheckpointReader& a, CheckpointReader& b, double tolerance) {
  Comparison comparison;
  std::map<std::string, std::pair<const TensorSlice*, const TensorSlice*>> names;
  const std::vector<TensorSlice> of_a = whole_tensors(a.manifest()), of_b = whole_tensors(b.manifest());
  for (const TensorSlice& tensor : of_a) names[tensor.name].first = &tensor;
  for (const TensorSlice& tensor : of_b) names[tensor.name].second = &tensor;
  Pair pair(a, b);
  for (const auto& [name, tensors] : names) {
    ++comparison.tensors;
    const auto& [x, y] = tensors;
    TensorDifference difference{.name = name};
    if (x == nullptr || y == nullptr)
      difference.problem = x == nullptr ? "in the second alone" : "in the first alone";
    else if (x->dtype != y->dtype || x->logical_shape != y->logical_shape)
      difference.problem = text_of(*x) + " in the first, " + text_of(*y) + " in the second";
    else difference = pair.compare(*x);
    if (!difference.problem.empty() ||
        (difference.unequal > 0 && (tolerance == 0 || !(difference.relative <= tolerance))))
      comparison.different.push_back(std::move(difference));
  }
  return comparison;
}

TensorStatistics statistics_of(CheckpointReader& reader, const TensorSlice& whole) {
  TensorStatistics found{.elements = elements_of(whole.shape)};
  std::vector<std::byte> bytes;
  std::vector<double> values;
  double sum = 0, squares = 0;
  for_each_piece(whole, kTensorPieceBytes, [&](const TensorSlice& piece) {
    reader.read(piece, sized(bytes, piece));
    to_doubles(piece.dtype, bytes, values);
    for (const double x : values) {
      if (!std::isfinite(x)) {
        ++found.not_finite;
        continue;
      }
      found.least = std::min(found.least, x);
      found.most = std::max(found.most, x);
      sum += x;
      squares += x * x;
    }
  });
  if (const auto finite = static_cast<double>(found.elements - found.not_finite); finite > 0) {
    found.mean = sum / finite;
    found.root_mean_square = std::sqrt(squares / finite);
  }
  return found;
}

}  // namespace trainerd::io
