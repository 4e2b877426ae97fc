#include "core/rank/canary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/memory/memory.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::core::rank {

using namespace kernels;

namespace {

// Sums of at most this many products of -1, 0 and 1 are exact in fp32, bf16 and fp16.
constexpr std::int64_t kSize = 256;

/// Row-major, kSize by kSize. Sums of kSize products fit.
using Integers = std::vector<std::int16_t>;

/// Pseudo-random, equal on every machine; `which` selects the matrix.
Integers small_integers(std::uint32_t which) {
  Integers values(static_cast<std::size_t>(kSize * kSize));
  std::uint32_t state = 0x9e3779b9u * (which + 1);
  for (std::int16_t& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<std::int16_t>(static_cast<int>(state >> 30) % 3 - 1);
  }
  return values;
}

Integers transposed(const Integers& a) {
  Integers result(a.size());
  for (std::size_t i = 0; i < kSize; ++i)
    for (std::size_t j = 0; j < kSize; ++j) result[j * kSize + i] = a[i * kSize + j];
  return result;
}

/// Returns a b. The elements of a are -1, 0 and 1. Rows of b are added and subtracted, many elements at a
/// time: every worker does this at its start.
Integers product(const Integers& a, const Integers& b) {
  Integers result;
  result.reserve(a.size());
  for (std::size_t i = 0; i < kSize; ++i) {
    std::array<std::int16_t, kSize> row{};
    for (std::size_t k = 0; k < kSize; ++k) {
      const std::int16_t* terms = &b[k * kSize];
      if (a[i * kSize + k] > 0)
        for (std::size_t j = 0; j < kSize; ++j) row[j] = static_cast<std::int16_t>(row[j] + terms[j]);
      else if (a[i * kSize + k] < 0)
        for (std::size_t j = 0; j < kSize; ++j) row[j] = static_cast<std::int16_t>(row[j] - terms[j]);
    }
    result.insert(result.end(), row.begin(), row.end());
  }
  return result;
}

std::vector<std::byte> bytes_of(const Integers& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_of(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    const std::uint16_t half = dtype == DType::bf16 ? to_bf16(value).bits : to_fp16(value).bits;
    if (dtype == DType::f32) std::memcpy(&bytes[4 * i], &value, 4);
    else std::memcpy(&bytes[2 * i], &half, 2);
  }
  return bytes;
}

float element(std::span<const std::byte> bytes, DType dtype, std::size_t i) {
  float value = 0;
  std::uint16_t half = 0;
  if (dtype == DType::f32) {
    std::memcpy(&value, &bytes[4 * i], 4);
    return value;
  }
  std::memcpy(&half, &bytes[2 * i], 2);
  return dtype == DType::bf16 ? to_float(Bf16{half}) : to_float(Fp16{half});
}

std::string difference(const char* op, std::span<const std::byte> got, DType dtype, const Integers& right) {
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = right.size(); i-- > 0;)
    if (element(got, dtype, i) != static_cast<float>(right[i])) ++wrong, first = i;
  if (wrong == 0) return "";
  return fmt::format("{}: {} of {} elements {} wrong, the first at [{}, {}]: {} in place of {}", op, wrong,
                     right.size(), wrong == 1 ? "is" : "are", first / kSize, first % kSize,
                     element(got, dtype, first), right[first]);
}

}  // namespace

std::string wrong_products(Backend& backend, DType dtype) {
  const Integers x = small_integers(0), w = small_integers(1), dy = small_integers(2);
  const Tensor shape{nullptr, dtype, {kSize, kSize}}, sums{nullptr, DType::f32, {kSize, kSize}};
  LinearFprop fprop{.x_TC = shape, .weight = {shape, {}}, .bias_N = {}, .addend_TN = {}, .y_TN = shape};
  LinearDgrad dgrad{.dy_TN = shape, .weight = {shape, {}}, .dx_TC = shape};
  LinearWgrad wgrad{
      .dy_TN = shape, .x_TC = shape, .dweight_NC = sums, .dbias_N = {}, .mode = WriteMode::assign};
  const std::int64_t scratch =
      align_up(std::max({scratch_bytes(fprop, backend.target()), scratch_bytes(dgrad, backend.target()),
                         scratch_bytes(wgrad, backend.target())}));
  const Buffer buffer = backend.allocate(MemoryKind::device,
                                         4 * align_up(shape.bytes()) + align_up(sums.bytes()) + 2 * scratch);
  Arena arena("canary", buffer.data(), buffer.bytes());
  const auto take = [&](DType of) { return arena.take(of, {kSize, kSize}, MemoryTerm::workspace); };
  const Tensor x_TC = take(dtype), w_NC = take(dtype), dy_TN = take(dtype), out = take(dtype),
               dw_NC = take(DType::f32);
  const auto stream = backend.make_stream("canary", &arena);
  backend.write(*stream, bytes_of(x, dtype), x_TC);
  backend.write(*stream, bytes_of(w, dtype), w_NC);
  backend.write(*stream, bytes_of(dy, dtype), dy_TN);
  const auto wrong = [&](const char* op, const Tensor& result, const Integers& right) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(result.bytes()));
    backend.read_back(*stream, result, bytes);
    return difference(op, bytes, result.dtype, right);
  };
  backend.linear_fprop(*stream,
                       {.x_TC = x_TC, .weight = {w_NC, {}}, .bias_N = {}, .addend_TN = {}, .y_TN = out});
  if (auto why = wrong("linear_fprop", out, product(x, transposed(w))); !why.empty()) return why;
  backend.linear_dgrad(*stream, {.dy_TN = dy_TN, .weight = {w_NC, {}}, .dx_TC = out});
  if (auto why = wrong("linear_dgrad", out, product(dy, w)); !why.empty()) return why;
  backend.linear_wgrad(
      *stream, {.dy_TN = dy_TN, .x_TC = x_TC, .dweight_NC = dw_NC, .dbias_N = {}, .mode = WriteMode::assign});
  return wrong("linear_wgrad", dw_NC, product(transposed(dy), x));
}

}  // namespace trainerd::core::rank
