#include "core/train/batch_source.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace trainerd::core::train {

void make_batch(const BatchShape& shape, const BatchRequest& request, const ReadSample& read,
                HostSample& sample, HostBatch& batch) {
  const auto seq = static_cast<std::size_t>(shape.seq_len);
  const auto tokens = static_cast<std::size_t>(shape.tokens());
  batch.tokens_T.resize(request.tokens ? tokens : 0);
  batch.targets_T.resize(request.tokens ? tokens : 0);
  batch.positions_T.resize(tokens);
  batch.loss_weight_T.assign(tokens, 1.0f);
  batch.cu_seqlens.resize(static_cast<std::size_t>(shape.micro) + 1);
  sample.tokens_S1.resize(seq + 1);
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.micro); ++i) {
    const std::size_t at = i * seq;
    for (std::size_t s = 0; s < seq; ++s) batch.positions_T[at + s] = static_cast<std::int32_t>(s);
    batch.cu_seqlens[i + 1] = static_cast<std::int32_t>(at + seq);
    const std::int64_t number = shape.first_sample(request.microbatch) + static_cast<std::int64_t>(i);
    const auto to = static_cast<std::ptrdiff_t>(at);
    if (number >= shape.global) {
      std::fill_n(batch.loss_weight_T.begin() + to, seq, 0.0f);
      if (!request.tokens) continue;
      std::fill_n(batch.tokens_T.begin() + to, seq, 0);
      std::fill_n(batch.targets_T.begin() + to, seq, 0);
      continue;
    }
    if (!request.tokens) continue;
    sample.loss_weight_S.assign(seq, 1.0f);
    read(number, sample);
    // A sample's inputs are all but its last token, its targets all but its first.
    std::copy_n(sample.tokens_S1.begin(), seq, batch.tokens_T.begin() + to);
    std::copy_n(sample.tokens_S1.begin() + 1, seq, batch.targets_T.begin() + to);
    std::copy_n(sample.loss_weight_S.begin(), seq, batch.loss_weight_T.begin() + to);
  }
  batch.loss_weight = std::accumulate(batch.loss_weight_T.begin(), batch.loss_weight_T.end(), 0.0);
}

}  // namespace trainerd::core::train
