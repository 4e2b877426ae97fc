#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/blend.h"
#include "io/tokens/options.h"
#include "io/tokens/token_source.h"

namespace trainerd::io {

/// Where one source of the training data stands when an order of samples begins.
struct SourceStart {
  std::int64_t stream = 0;  ///< what the order of its samples is keyed by beside the seed
  std::int64_t taken = 0;   ///< samples taken of it before

  bool operator==(const SourceStart&) const = default;
};
/// The order of samples that a run follows: since the cursor `start`, from `sources`, by their place in the
/// job. Without any: at cursor 0, each source from its beginning and with its place in the job as its stream.
struct DataOrder {
  std::int64_t start = 0;
  std::vector<SourceStart> sources = {};

  bool operator==(const DataOrder&) const = default;
};

/// One source as a job describes it and its files are.
struct SourceFacts {
  std::string name;     ///< its paths, for people
  std::string files;    ///< names and sizes of its files and seq_len: TokenSource::fingerprint
  std::string content;  ///< of samples of every file; empty when they were not read
  double weight = 1;
  std::int64_t limit = BlendShare::kUnlimited;  ///< samples of it that a run may take, from its first on
  std::int64_t samples = 0;                     ///< of an epoch

  bool operator==(const SourceFacts&) const = default;
};

/// The blend of `sources` after `order`'s start.
Blend blend_after(const DataOrder& order, std::span<const SourceFacts> sources);

/// What identifies all sources together: of one that has no share but the whole, its own text.
std::string all_files(std::span<const SourceFacts> sources);
std::string all_content(std::span<const SourceFacts> sources);

/// What the data of a job is read as.
struct SampleShape {
  std::int64_t seq_len = 0, vocab = 0;
  std::uint64_t seed = 0;
};

/// The data of a job: one source or several, each a TokenSource. The sample at a cursor is a function of
/// seed, order and cursor alone.
class TokenBlend {
 public:
  /// Opens every file of the training data. Throws DataError naming it, see TokenSource.
  static TokenBlend training(const DataOptions& options, const SampleShape& shape,
                             const DataFiles& files = {});
  /// Of one of `validation_sets`, whose samples come in their order. Of a split the sources give theirs by
  /// their weights, and once.
  static TokenBlend validation(const DataOptions& options, const SampleShape& shape, const ValidationSet& set,
                               const DataFiles& files = {});
  /// Of the first.
  static TokenBlend validation(const DataOptions& options, const SampleShape& shape);
  ~TokenBlend();
  TokenBlend(TokenBlend&&) noexcept;
  TokenBlend& operator=(TokenBlend&&) noexcept;

  std::int64_t tokens() const;                      ///< of an epoch of every source
  std::int64_t samples() const;                     ///< of an epoch of every source
  std::int64_t limited_samples() const;             ///< of these; see TokenSource::limited_samples
  std::int64_t places_per_sample() const;           ///< of the source that has most
  const std::vector<SourceFacts>& sources() const;  ///< without their content
  /// With their content, of samples read on `threads` threads for each source. Throws DataError: an id that
  /// is not in the vocabulary; two sources of the same data.
  std::vector<SourceFacts> check_samples(int threads) const;

  void start_order(const DataOrder& order);
  /// The sample at `cursor`: its source (an index into `sources`) and its number within that source.
  struct Sample {
    std::size_t source = 0;
    std::int64_t number = 0;
  };
  Sample sample_at(std::int64_t cursor) const;
  /// The sample at `cursor` will be read soon, see TokenSource::announce. A cursor that has none is let be.
  void announce(std::int64_t cursor) const;
  /// Writes the seq_len + 1 tokens of the sample at `cursor`, see TokenSource::read. Not for two threads at
  /// once.
  void read(std::int64_t cursor, std::span<std::int32_t> tokens_S1);
  /// The loss weights of the same sample, see TokenSource::read_loss_weights.
  void read_loss_weights(std::int64_t cursor, std::span<float> weights_S);
  /// Where documents begin in the same sample, see TokenSource::read_document_starts.
  void read_document_starts(std::int64_t cursor, std::span<const std::int32_t> tokens_S1,
                            std::vector<std::int32_t>& starts);

 private:
  TokenBlend(const std::vector<DataSource>& sources, const DataOptions& options, const SampleShape& shape,
             TokenSource::Reading reading);

  struct State;
  struct Place;
  Place place_of(std::int64_t cursor) const;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
