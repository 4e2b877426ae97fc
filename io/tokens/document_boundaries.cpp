#include "io/tokens/document_boundaries.h"

#include <algorithm>

#include "io/tokens/megatron_index.h"
#include "io/tokens/options.h"
#include "kernels/base/error.h"

namespace trainerd::io {

DocumentBoundaries::DocumentBoundaries(std::span<const SourceFile> files, std::int64_t end_token)
    : end_token_(end_token) {
  for (const SourceFile& file : files) {
    std::vector<std::int64_t>& starts = starts_.emplace_back();
    if (file.layout.index) {
      each_document(*file.layout.index, [&starts](const Document& document) {
        if (document.tokens > 0) starts.push_back(document.first);
      });
    } else if (end_token == DataOptions::kNoToken) {
      throw base::data_error(file.path +
                             ": data.document_mask and data.reset_positions need to know where documents "
                             "begin, and this file does "
                             "not say it: set data.end_token to the id that ends a document, or name a "
                             "Megatron data set (.bin with "
                             ".idx)");
    }
  }
}

void DocumentBoundaries::starts_in(std::size_t file, std::int64_t at, std::span<const std::int32_t> tokens,
                                   std::int32_t first, std::vector<std::int32_t>& starts) const {
  const auto add = [&starts](std::int32_t start) {
    if (starts.empty() || starts.back() != start) starts.push_back(start);
  };
  const std::vector<std::int64_t>& known = starts_[file];
  if (known.empty()) {
    if (at == 0) add(first);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i] == end_token_) add(first + static_cast<std::int32_t>(i) + 1);
    return;
  }
  const std::int64_t end = at + static_cast<std::int64_t>(tokens.size());
  for (auto start = std::lower_bound(known.begin(), known.end(), at); start != known.end() && *start < end;
       ++start)
    add(first + static_cast<std::int32_t>(*start - at));
}

}  // namespace trainerd::io
