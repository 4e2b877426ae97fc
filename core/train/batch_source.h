#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "parallel/context/sequence_share.h"

namespace trainerd::core::train {

/// One sample in host memory.
struct HostSample {
  std::vector<std::int32_t> tokens_S1;  ///< length seq_len + 1
  std::vector<float> loss_weight_S;     ///< weight of predicting token s + 1; 1 unless the reader sets it
  std::vector<std::int32_t> starts;     ///< ascending: which of tokens 1 to seq_len begin a document
  std::int64_t real = 0;  ///< how many of the first seq_len tokens are no padding, which follows them; all
                          ///< unless the reader sets it
  std::array<double, 2> reference{};  ///< for a pair: the reference's log-probabilities of its answers
};
/// Fills one sample, whose vectors are already sized. `sample` counts from 0 within the global batch.
using ReadSample = std::function<void(std::int64_t sample, HostSample& to)>;

/// Parameters with which a rank makes its microbatches.
struct BatchShape {
  std::int64_t seq_len = 0;
  std::int64_t micro = 0;  ///< sequences per microbatch
  std::int64_t dp = 1, dp_rank = 0;
  std::int64_t cp = 1, cp_rank = 0;  ///< ranks that share each sample
  std::int64_t global = 0;  ///< samples per global batch; sequences beyond it are padding with weight 0
  /// Maximum number of documents per sample, each a sequence of its own; 0: a sample is one sequence.
  std::int64_t documents = 0;
  bool reset_positions = false;  ///< positions start at 0 in each document
  /// A sample is a pair: the documents of the chosen and the rejected answer, and padding. Loss weights of
  /// the second are negated, and a batch's weight is its number of pairs.
  bool pairs = false;
  /// The model has experts: each chunk of it needs the loss weights, and to know padding from tokens.
  bool experts = false;

  parallel::SequenceShare share() const { return {seq_len, cp, cp_rank}; }
  /// Of this rank.
  std::int64_t tokens() const { return micro * share().rows(); }
  /// Number of sequences that `HostBatch::cu_seqlens` has room for; missing ones are empty.
  std::int64_t sequences() const { return micro * std::max<std::int64_t>(1, documents); }
  bool reads_documents() const { return documents > 0 || reset_positions; }
  /// Chunks that need no tokens read samples too.
  bool reads_always() const { return reads_documents() || experts; }
  /// First sample of microbatch `m`, within the global batch.
  std::int64_t first_sample(std::int64_t m) const { return (m * dp + dp_rank) * micro; }
};

/// A request for a microbatch by a chunk's forward. Chunks between the first and the last need no tokens.
struct BatchRequest {
  std::int64_t microbatch = 0;
  bool tokens = true;

  bool operator==(const BatchRequest&) const = default;
};

/// A microbatch in host memory, flattened over this rank's tokens: the values of a Batch.
struct HostBatch {
  std::vector<std::int32_t> tokens_T, targets_T;  ///< empty if the request leaves them out
  std::vector<std::int32_t> positions_T;          ///< within the sample, or the document
  std::vector<float> loss_weight_T;
  std::vector<std::int32_t> real_T;      ///< for models with experts: 0 for padding, else 1; otherwise empty
  std::vector<std::int32_t> cu_seqlens;  ///< [sequences + 1]
  std::array<std::vector<std::int32_t>, 2> piece_seqlens, piece_first;  ///< empty where a Batch has none
  std::vector<double> reference_P2;                                     ///< for pairs; else empty
  double loss_weight = 0;  ///< sum of the weights; for pairs, the number of real pairs; of this rank
};

/// Makes a microbatch. `sample` is scratch. With `documents`, the prediction of a document's first token gets
/// weight 0, because its input is from another document.
void make_batch(const BatchShape& shape, const BatchRequest& request, const ReadSample& read,
                HostSample& sample, HostBatch& batch);

/// Source of a rank's microbatches.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Requests must come in the order of Trainer::batch_requests. The result is valid until the next call.
  /// Throws what reading throws.
  virtual const HostBatch& next(const BatchRequest& request) = 0;
};

/// Reads each microbatch when it is requested, in any order.
class SampleBatches final : public BatchSource {
 public:
  SampleBatches(const BatchShape& shape, ReadSample read) : shape_(shape), read_(std::move(read)) {}
  const HostBatch& next(const BatchRequest& request) override {
    make_batch(shape_, request, read_, sample_, batch_);
    return batch_;
  }

 private:
  BatchShape shape_;
  ReadSample read_;
  HostSample sample_;
  HostBatch batch_;
};

}  // namespace trainerd::core::train
