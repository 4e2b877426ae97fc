#include "core/train/batch_source.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>

#include "kernels/base/error.h"

namespace trainerd::core::train {
namespace {

/// Makes a sequence padding, with weight 0.
void pad(const BatchRequest& request, std::ptrdiff_t at, std::int64_t seq_len, HostBatch& batch) {
  std::fill_n(batch.loss_weight_T.begin() + at, seq_len, 0.0f);
  if (!request.tokens) return;
  std::fill_n(batch.tokens_T.begin() + at, seq_len, 0);
  std::fill_n(batch.targets_T.begin() + at, seq_len, 0);
}

/// Sets attention, positions and loss weights for the documents of a sample whose first row is `at`.
void separate(const BatchShape& shape, std::ptrdiff_t at, const HostSample& sample, HostBatch& batch) {
  const auto first = static_cast<std::int32_t>(at), end = static_cast<std::int32_t>(at + shape.seq_len);
  std::int32_t begin = first;
  const auto close = [&](std::int32_t document_end) {
    if (shape.reset_positions)
      std::iota(batch.positions_T.begin() + begin, batch.positions_T.begin() + document_end, 0);
    if (shape.documents > 0) batch.cu_seqlens.push_back(document_end);
    begin = document_end;
  };
  for (const std::int32_t start : sample.starts) {
    // The input for a document's first token is the last token of another document.
    if (shape.documents > 0) batch.loss_weight_T[static_cast<std::size_t>(at + start - 1)] = 0.0f;
    if (start < shape.seq_len) close(first + start);
  }
  close(end);
}

/// Negates the weights of the second document, the rejected answer, of a pair whose first row is `at`.
void weigh_pair(const BatchShape& shape, std::ptrdiff_t at, const HostSample& sample, HostBatch& batch) {
  base::check(!sample.starts.empty(), "a pair is two documents");
  const auto end = batch.loss_weight_T.begin() + at + shape.seq_len;
  std::transform(batch.loss_weight_T.begin() + at + sample.starts[0], end,
                 batch.loss_weight_T.begin() + at + sample.starts[0], std::negate<>());
}

/// Keeps this rank's rows of a microbatch of whole samples.
void keep_share(const BatchShape& shape, HostBatch& batch) {
  const parallel::SequenceShare share = shape.share();
  const auto keep = [&](auto& values) {
    if (values.empty()) return;
    const auto whole = values;
    values.resize(static_cast<std::size_t>(shape.tokens()));
    for (std::size_t row = 0; row < values.size(); ++row)
      values[row] = whole[static_cast<std::size_t>(share.token(static_cast<std::int64_t>(row), shape.micro))];
  };
  keep(batch.tokens_T), keep(batch.targets_T), keep(batch.positions_T), keep(batch.loss_weight_T),
      keep(batch.real_T);
  const auto rows = static_cast<std::int32_t>(share.piece_rows()),
             seq_len = static_cast<std::int32_t>(shape.seq_len);
  for (int piece = 0; piece < share.pieces(); ++piece) {
    const auto at = static_cast<std::size_t>(piece);
    const auto first = static_cast<std::int32_t>(share.first(piece));
    // Rows of the piece among the first `tokens` tokens of the samples.
    const auto rows_before = [&](std::int32_t tokens) {
      return tokens / seq_len * rows + std::clamp(tokens % seq_len - first, 0, rows);
    };
    batch.piece_seqlens[at].clear(), batch.piece_first[at].clear();
    for (const std::int32_t bound : batch.cu_seqlens) batch.piece_seqlens[at].push_back(rows_before(bound));
    if (shape.documents == 0) continue;
    for (std::size_t b = 0; b + 1 < batch.cu_seqlens.size(); ++b)
      batch.piece_first[at].push_back(-std::min(batch.cu_seqlens[b] % seq_len, first));
  }
}

}  // namespace

void make_batch(const BatchShape& shape, const BatchRequest& request, const ReadSample& read,
                HostSample& sample, HostBatch& batch) {
  const auto tokens = static_cast<std::size_t>(shape.micro * shape.seq_len);
  batch.tokens_T.resize(request.tokens ? tokens : 0);
  batch.targets_T.resize(request.tokens ? tokens : 0);
  batch.positions_T.resize(tokens);
  batch.loss_weight_T.assign(tokens, 1.0f);
  batch.real_T.assign(shape.experts ? tokens : 0, 0);
  batch.cu_seqlens.assign(1, 0);
  batch.reference_P2.assign(static_cast<std::size_t>(shape.pairs ? 2 * shape.micro : 0), 0.0);
  std::int64_t pairs = 0;
  sample.tokens_S1.resize(static_cast<std::size_t>(shape.seq_len) + 1);
  for (std::int64_t i = 0; i < shape.micro; ++i) {
    const std::ptrdiff_t at = i * shape.seq_len;
    std::iota(batch.positions_T.begin() + at, batch.positions_T.begin() + at + shape.seq_len, 0);
    const std::int64_t number = shape.first_sample(request.microbatch) + i;
    const bool real = number < shape.global;
    sample.loss_weight_S.assign(static_cast<std::size_t>(shape.seq_len), 1.0f);
    sample.starts.clear();
    sample.real = shape.seq_len;
    if (!real) pad(request, at, shape.seq_len, batch);
    else if (request.tokens || shape.reads_always()) read(number, sample);
    if (real && request.tokens) {
      // A sample's inputs are all but its last token; its targets are all but its first.
      std::copy_n(sample.tokens_S1.begin(), shape.seq_len, batch.tokens_T.begin() + at);
      std::copy_n(sample.tokens_S1.begin() + 1, shape.seq_len, batch.targets_T.begin() + at);
    }
    if (real && (request.tokens || shape.experts))
      std::copy_n(sample.loss_weight_S.begin(), shape.seq_len, batch.loss_weight_T.begin() + at);
    if (real && shape.experts)
      std::fill_n(batch.real_T.begin() + at, std::min(sample.real, shape.seq_len), 1);
    if (shape.reads_documents()) separate(shape, at, sample, batch);
    if (shape.pairs && real) {
      weigh_pair(shape, at, sample, batch);
      std::copy(sample.reference.begin(), sample.reference.end(), batch.reference_P2.begin() + 2 * i);
      ++pairs;
    }
    if (shape.documents == 0) batch.cu_seqlens.push_back(static_cast<std::int32_t>(at + shape.seq_len));
  }
  const auto bounds = static_cast<std::size_t>(shape.sequences()) + 1;
  base::check(batch.cu_seqlens.size() <= bounds, "a sample has at most as many documents as its shape says");
  batch.cu_seqlens.resize(bounds, static_cast<std::int32_t>(tokens));
  if (!shape.share().whole()) keep_share(shape, batch);
  batch.loss_weight = shape.pairs
                          ? static_cast<double>(pairs)
                          : std::accumulate(batch.loss_weight_T.begin(), batch.loss_weight_T.end(), 0.0);
}

}  // namespace trainerd::core::train
