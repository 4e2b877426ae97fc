#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace trainerd::kernels {

/// Copies bytes that this processor does not read again soon, bypassing its caches: destination lines are not
/// read before they are written, and no useful data is evicted.
inline void streaming_copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
#if defined(__x86_64__)
  constexpr std::int64_t kLine = 64, kStore = 16;
  const auto head = static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) % kLine);
  if (bytes >= head + kLine) {
    std::memcpy(to, from, static_cast<std::size_t>(head));
    to += head, from += head, bytes -= head;
    for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) {
      const auto* in = reinterpret_cast<const __m128i*>(from);
      auto* out = reinterpret_cast<__m128i*>(to);
      static_assert(kLine == 4 * kStore);
      const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                    d = _mm_loadu_si128(in + 3);
      _mm_stream_si128(out, a);
      _mm_stream_si128(out + 1, b);
      _mm_stream_si128(out + 2, c);
      _mm_stream_si128(out + 3, d);
    }
    _mm_sfence();
  }
#endif
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace trainerd::kernels
