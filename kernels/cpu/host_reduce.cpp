#include "kernels/cpu/host_reduce.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/base/error.h"

namespace trainerd::kernels {
namespace {

template <class Acc, class T>
Acc load(T x) {
  if constexpr (sizeof(T) == 2) return static_cast<Acc>(to_float(x));
  else return static_cast<Acc>(x);
}

template <class T, class Acc>
T store(Acc x) {
  if constexpr (sizeof(T) == 2) return rounded_to<T>(static_cast<float>(x));
  else return static_cast<T>(x);
}

// A block of accumulators stays in the first-level cache while the inputs are streamed.
template <class T, class Acc, class Combine>
void reduce(std::span<const std::byte* const> inputs, std::byte* out_bytes, std::int64_t count,
            Combine combine) {
  constexpr std::int64_t kBlock = 1024;
  alignas(64) std::array<Acc, kBlock> sums;
  T* out = reinterpret_cast<T*>(out_bytes);
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const auto n = static_cast<std::size_t>(std::min(kBlock, count - begin));
    const T* first = reinterpret_cast<const T*>(inputs[0]) + begin;
    for (std::size_t i = 0; i < n; ++i) sums[i] = load<Acc>(first[i]);
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      const T* x = reinterpret_cast<const T*>(inputs[k]) + begin;
      for (std::size_t i = 0; i < n; ++i) sums[i] = combine(sums[i], load<Acc>(x[i]));
    }
    for (std::size_t i = 0; i < n; ++i) out[begin + static_cast<std::int64_t>(i)] = store<T>(sums[i]);
  }
}

template <class T, class Acc>
void reduce(HostReduce op, std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count) {
  if (op == HostReduce::sum) reduce<T, Acc>(inputs, out, count, [](Acc a, Acc b) { return a + b; });
  else reduce<T, Acc>(inputs, out, count, [](Acc a, Acc b) { return b > a || b != b ? b : a; });
}

}  // namespace

void host_reduce(HostReduce op, DType dtype, DType accumulate, std::span<const std::byte* const> inputs,
                 std::byte* out, std::int64_t count) {
  base::check(!inputs.empty(), "a reduction has inputs");
  base::check(accumulate == DType::f32 || accumulate == DType::f64, "reductions accumulate in fp32 or fp64");
  const bool wide = accumulate == DType::f64;
  switch (dtype) {
    case DType::f32:
      return wide ? reduce<float, double>(op, inputs, out, count)
                  : reduce<float, float>(op, inputs, out, count);
    case DType::bf16:
      return wide ? reduce<Bf16, double>(op, inputs, out, count)
                  : reduce<Bf16, float>(op, inputs, out, count);
    case DType::f16:
      return wide ? reduce<Fp16, double>(op, inputs, out, count)
                  : reduce<Fp16, float>(op, inputs, out, count);
    case DType::f64: return reduce<double, double>(op, inputs, out, count);
    case DType::i32: return reduce<std::int32_t, std::int64_t>(op, inputs, out, count);
    case DType::u8: break;
  }
  base::check(false, "bytes are moved, not reduced");
}

}  // namespace trainerd::kernels
