#include "tests/bench/gpu/device_rates.h"

#include <algorithm>
#include <vector>

namespace trainerd::bench {

using namespace kernels;

double copy_rate(Backend& backend, std::int64_t bytes) {
  constexpr int kCopies = 9;
  const Buffer memory = backend.allocate(MemoryKind::device, 2 * align_up(bytes));
  const Tensor from{memory.data(), DType::u8, {bytes}},
      to{memory.data() + align_up(bytes), DType::u8, {bytes}};
  const auto stream = backend.make_stream("copy", nullptr);
  const auto begin = backend.make_event(), end = backend.make_event();
  std::vector<double> seconds;
  for (int i = 0; i <= kCopies; ++i) {
    backend.record(*stream, *begin);
    backend.copy(*stream, from, to);
    backend.record(*stream, *end);
    backend.wait_host(*end);
    if (i > 0) seconds.push_back(backend.elapsed_seconds(*begin, *end));  // copy 0 touches the memory
  }
  std::nth_element(seconds.begin(), seconds.begin() + kCopies / 2, seconds.end());
  return 2.0 * static_cast<double>(bytes) / seconds[kCopies / 2];
}

}  // namespace trainerd::bench
