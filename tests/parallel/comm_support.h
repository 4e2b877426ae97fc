#pragma once

// Shared parts of communicator tests: tensors in host memory, values that any rank can compute for any other,
// and expected results of collectives, one element at a time. Each executable chooses the transport
// (world.h).

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "tests/parallel/world.h"

namespace trainerd::test {

using kernels::DType;
using kernels::Tensor;
using Values = std::vector<double>;  // holds every value of every dtype exactly

inline void put(const Tensor& x, std::int64_t i, double value) {
  switch (x.dtype) {
    case DType::f32: x.as<float>()[i] = static_cast<float>(value); break;
    case DType::bf16: x.as<kernels::Bf16>()[i] = kernels::to_bf16(static_cast<float>(value)); break;
    case DType::f16: x.as<kernels::Fp16>()[i] = kernels::to_fp16(static_cast<float>(value)); break;
    case DType::i32: x.as<std::int32_t>()[i] = static_cast<std::int32_t>(value); break;
    case DType::f64: x.as<double>()[i] = value; break;
    case DType::u8: x.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(value); break;
  }
}
inline double get(const Tensor& x, std::int64_t i) {
  switch (x.dtype) {
    case DType::f32: return static_cast<double>(x.as<float>()[i]);
    case DType::bf16: return static_cast<double>(kernels::to_float(x.as<kernels::Bf16>()[i]));
    case DType::f16: return static_cast<double>(kernels::to_float(x.as<kernels::Fp16>()[i]));
    case DType::i32: return x.as<std::int32_t>()[i];
    case DType::f64: return x.as<double>()[i];
    case DType::u8: return x.as<std::uint8_t>()[i];
  }
  return 0;
}

class HostTensor {
 public:
  HostTensor(DType dtype, std::int64_t numel)
      : memory_(make_memory(numel * kernels::size_of(dtype))), tensor_{memory_.data(), dtype, {numel}} {}
  HostTensor(DType dtype, const Values& values)
      : HostTensor(dtype, static_cast<std::int64_t>(values.size())) {
    for (std::size_t i = 0; i < values.size(); ++i) put(tensor_, static_cast<std::int64_t>(i), values[i]);
  }
  HostTensor(HostTensor&&) = default;
  HostTensor(const HostTensor&) = delete;
  const Tensor& operator*() const { return tensor_; }
  Values values() const {
    Values values;
    for (std::int64_t i = 0; i < tensor_.numel(); ++i) values.push_back(get(tensor_, i));
    return values;
  }

 private:
  kernels::Buffer memory_;
  Tensor tensor_;
};

inline std::uint64_t value_bits(std::uint64_t seed, std::int64_t rank, std::int64_t i) {
  std::uint64_t h = seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(rank) * 0xd1b54a32d192ed03u +
                    static_cast<std::uint64_t>(i) * 0x8cb92ba72f3d8dd7u;
  h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 32)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}
/// Element i of what `rank` passes to operation `seed`. Values have many magnitudes, so that the order of
/// summands shows in the result.
inline double value_in_rank_order(DType dtype, std::uint64_t seed, std::int64_t rank, std::int64_t i) {
  const std::uint64_t h = value_bits(seed, rank, i);
  const double unit = static_cast<double>(h >> 11) / 9007199254740992.0 - 0.5;
  if (dtype == DType::i32) return std::floor(unit * 2e8);
  if (dtype == DType::u8) return static_cast<double>(h & 255);
  const double scaled = std::ldexp(unit, static_cast<int>(h % 17) - 8);
  if (dtype == DType::f64) return scaled;
  const auto f = static_cast<float>(scaled);
  if (dtype == DType::f16) return static_cast<double>(kernels::to_float(kernels::to_fp16(f)));
  return dtype == DType::bf16 ? static_cast<double>(kernels::to_float(kernels::to_bf16(f)))
                              : static_cast<double>(f);
}

/// The same. If the transport does not sum in rank order, small integers, whose sums are exact in any order.
inline double value_of(DType dtype, std::uint64_t seed, std::int64_t rank, std::int64_t i) {
  if (!kSumsInRankOrder && dtype != DType::u8) return static_cast<double>(value_bits(seed, rank, i) % 17) - 8;
  return value_in_rank_order(dtype, seed, rank, i);
}

inline Values values_of(DType dtype, std::uint64_t seed, std::int64_t rank, std::int64_t numel) {
  Values values;
  for (std::int64_t i = 0; i < numel; ++i) values.push_back(value_of(dtype, seed, rank, i));
  return values;
}

/// Rank 0's value, plus rank 1's, plus ..., rounded to the accumulator's dtype after each addition and to the
/// tensor's dtype at the end.
inline double sum_of(DType dtype, std::uint64_t seed, const std::vector<std::int64_t>& ranks,
                     std::int64_t i) {
  if (dtype == DType::f64 || dtype == DType::i32) {
    double sum = value_of(dtype, seed, ranks[0], i);
    for (std::size_t r = 1; r < ranks.size(); ++r) sum += value_of(dtype, seed, ranks[r], i);
    return sum;
  }
  auto sum = static_cast<float>(value_of(dtype, seed, ranks[0], i));
  for (std::size_t r = 1; r < ranks.size(); ++r)
    sum += static_cast<float>(value_of(dtype, seed, ranks[r], i));
  if (dtype == DType::bf16) sum = kernels::to_float(kernels::to_bf16(sum));
  if (dtype == DType::f16) sum = kernels::to_float(kernels::to_fp16(sum));
  return static_cast<double>(sum);
}
inline double max_of(DType dtype, std::uint64_t seed, const std::vector<std::int64_t>& ranks,
                     std::int64_t i) {
  double max = value_of(dtype, seed, ranks[0], i);
  for (const std::int64_t rank : ranks) max = std::max(max, value_of(dtype, seed, rank, i));
  return max;
}

/// Throws if `holds` is false. For threads and processes, where Catch2 assertions must not be used.
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("a collective gave a wrong result: " + what);
}

inline std::vector<std::int64_t> all_ranks(std::int64_t n) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t r = 0; r < n; ++r) ranks.push_back(r);
  return ranks;
}

}  // namespace trainerd::test
