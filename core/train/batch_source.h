#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace trainerd::core::train {

/// One sample in host memory.
struct HostSample {
  std::vector<std::int32_t> tokens_S1;  ///< seq_len + 1
  std::vector<float> loss_weight_S;     ///< of predicting token s + 1; all 1 unless reading says otherwise
  std::vector<std::int32_t> starts;     ///< rising: which of tokens 1 to seq_len begin a document
  std::array<double, 2> reference{};    ///< of a pair: log-probabilities of its answers by the reference
};
/// Fills one sample, whose vectors have their sizes. `sample` counts from 0 within the global batch.
using ReadSample = std::function<void(std::int64_t sample, HostSample& to)>;

/// What one rank makes its microbatches from.
struct BatchShape {
  std::int64_t seq_len = 0;
  std::int64_t micro = 0;  ///< sequences of a microbatch
  std::int64_t dp = 1, dp_rank = 0;
  std::int64_t global = 0;  ///< samples of the global batch; sequences beyond it are padding without weight
  /// Of a sample at most, each a sequence of its own; 0: a sample is one sequence, whatever documents it has.
  std::int64_t documents = 0;
  bool reset_positions = false;  ///< positions count from the beginning of their document
  /// A sample is two documents, the chosen and the rejected answer of a pair, and padding. Loss weights of
  /// the second count as negative, and what a batch weighs is its number of pairs.
  bool pairs = false;

  std::int64_t tokens() const { return micro * seq_len; }
  /// That `HostBatch::cu_seqlens` has room for; those that a microbatch does not have are empty.
  std::int64_t sequences() const { return micro * std::max<std::int64_t>(1, documents); }
  bool reads_documents() const { return documents > 0 || reset_positions; }
  /// Of microbatch `m`, within the global batch.
  std::int64_t first_sample(std::int64_t m) const { return (m * dp + dp_rank) * micro; }
};

/// A microbatch that a chunk's forward asks for. Chunks between the first and the last read no tokens.
struct BatchRequest {
  std::int64_t microbatch = 0;
  bool tokens = true;

  bool operator==(const BatchRequest&) const = default;
};

/// A microbatch in host memory, token-flat: the values of a Batch.
struct HostBatch {
  std::vector<std::int32_t> tokens_T, targets_T;  ///< empty where the request leaves them out
  std::vector<std::int32_t> positions_T;          ///< within their samples, or documents
  std::vector<float> loss_weight_T;
  std::vector<std::int32_t> cu_seqlens;  ///< [sequences + 1]
  std::vector<double> reference_P2;      ///< of pairs; else empty
  double loss_weight = 0;                ///< the sum of weights, or pairs that are no padding
};

/// Makes a microbatch. `sample` is scratch. With `documents`, a token that begins a document is predicted
/// from another one, which does not count.
void make_batch(const BatchShape& shape, const BatchRequest& request, const ReadSample& read,
                HostSample& sample, HostBatch& batch);

/// Where a rank's passes get their microbatches.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// The requests of a pass come in the order of Trainer::batch_requests. Valid until the next call. Throws
  /// what reading throws.
  virtual const HostBatch& next(const BatchRequest& request) = 0;
};

/// Reads each microbatch when it is asked for, in any order.
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
