#include "io/prepare/loss_mask.h"

#include <algorithm>

namespace trainerd::io {

void mark_tokens(std::span<const std::size_t> ends, const std::vector<TextSpan>& spans,
                 std::vector<std::uint8_t>& mask) {
  mask.clear();
  auto span = spans.begin();
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    while (span != spans.end() && span->end <= begin) ++span;
    mask.push_back(span != spans.end() && span->begin < std::max(end, begin + 1) ? 1 : 0);
    begin = end;
  }
}

}  // namespace trainerd::io
