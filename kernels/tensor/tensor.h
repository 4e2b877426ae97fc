#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/base/error.h"
#include "kernels/tensor/dtype.h"

namespace trainerd::kernels {

constexpr int kMaxDims = 4;

/// Sizes of a row-major, contiguous tensor. `ndim` 0 is the empty shape (no tensor), not a scalar.
struct Shape {
  std::array<std::int64_t, kMaxDims> sizes{};
  int ndim = 0;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> list) {
    base::check(list.size() <= kMaxDims, "a shape has at most four dims");
    for (std::int64_t size : list) sizes[static_cast<std::size_t>(ndim++)] = size;
  }
  /// Size of dim `i`; negative `i` counts from the last.
  std::int64_t operator[](int i) const { return sizes[static_cast<std::size_t>(i < 0 ? ndim + i : i)]; }
  std::int64_t numel() const {
    if (ndim == 0) return 0;
    std::int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= (*this)[i];
    return n;
  }
  bool operator==(const Shape& other) const {
    if (ndim != other.ndim) return false;
    for (int i = 0; i < ndim; ++i)
      if ((*this)[i] != other[i]) return false;
    return true;
  }
};

/// "[8, 256, 384]"
std::string to_string(const Shape& shape);

/// A view of device memory: pointer, dtype, shape. Trivially copyable; owns nothing. Row-major and
/// contiguous. In the meta backend the pointer is a position in an address space without memory, so only the
/// `kernels/` implementations of real backends read through it.
struct Tensor {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  bool defined() const { return shape.ndim > 0; }
  std::int64_t numel() const { return shape.numel(); }
  std::int64_t bytes() const { return numel() * size_of(dtype); }
  std::int64_t size(int dim) const { return shape[dim]; }

  template <class T>
  T* as() const {
    base::check(!defined() || DTypeOf<T>::value == dtype, "a tensor was read as another dtype than its own");
    return reinterpret_cast<T*>(data);
  }

  /// Elements [begin, begin + count) of dim 0.
  Tensor rows(std::int64_t begin, std::int64_t count) const;
  /// The same elements with another shape of the same number of elements.
  Tensor reshaped(const Shape& to) const;

  bool operator==(const Tensor&) const = default;
};

}  // namespace trainerd::kernels
