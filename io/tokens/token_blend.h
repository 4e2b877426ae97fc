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

/// State of one data source at the start of an order of samples.
struct SourceStart {
  std::int64_t stream = 0;  ///< key of its sample order, in addition to the seed
  std::int64_t taken = 0;   ///< samples taken from it before that

  bool operator==(const SourceStart&) const = default;
};
/// The order of samples that a run follows from cursor `start` on. `sources` has one entry per source, in the
/// job's order. If it is empty, each source starts at its beginning and its index is its stream.
struct DataOrder {
  std::int64_t start = 0;
  std::vector<SourceStart> sources = {};

  bool operator==(const DataOrder&) const = default;
};

/// Description of one source: the job's options for it and properties of its files.
struct SourceFacts {
  std::string name;     ///< its paths, for display
  std::string files;    ///< TokenSource::fingerprint: file names, sizes and seq_len
  std::string content;  ///< hash of samples of every file; empty if not read
  double weight = 1;
  std::int64_t limit = BlendShare::kUnlimited;  ///< most samples a run may take, from its first on
  std::int64_t samples = 0;                     ///< per epoch

  bool operator==(const SourceFacts&) const = default;
};

/// Returns the blend that starts at `order`.
Blend blend_after(const DataOrder& order, std::span<const SourceFacts> sources);

/// Text that identifies all sources together. A single source without a limit gives its own text.
std::string all_files(std::span<const SourceFacts> sources);
std::string all_content(std::span<const SourceFacts> sources);

/// Parameters for reading the data of a job.
struct SampleShape {
  std::int64_t seq_len = 0, vocab = 0;
  std::uint64_t seed = 0;
};

/// The data of a job: one or several sources, each a TokenSource. The sample at a cursor depends only on
/// seed, order and cursor.
class TokenBlend {
 public:
  /// Opens every file of the training data. Throws DataError naming the file, see TokenSource.
  static TokenBlend training(const DataOptions& options, const SampleShape& shape,
                             const DataFiles& files = {});
  /// Opens one set of `validation_sets`; its samples are read in order. With `valid_fraction` the sources are
  /// blended by their weights, one epoch each.
  static TokenBlend validation(const DataOptions& options, const SampleShape& shape, const ValidationSet& set,
                               const DataFiles& files = {});
  /// Opens the first validation set.
  static TokenBlend validation(const DataOptions& options, const SampleShape& shape);
  ~TokenBlend();
  TokenBlend(TokenBlend&&) noexcept;
  TokenBlend& operator=(TokenBlend&&) noexcept;

  std::int64_t tokens() const;                      ///< one epoch of every source
  std::int64_t samples() const;                     ///< one epoch of every source
  std::int64_t limited_samples() const;             ///< sum of TokenSource::limited_samples
  std::int64_t places_per_sample() const;           ///< maximum over the sources
  const std::vector<SourceFacts>& sources() const;  ///< `content` is empty
  /// Returns the sources with their `content`. Reads samples on `threads` threads, one source after the
  /// other. Throws DataError for an id outside the vocabulary or for two sources with the same data.
  std::vector<SourceFacts> check_samples(int threads) const;

  void start_order(const DataOrder& order);
  /// The sample at `cursor`: its source (index into `sources`) and its number within that source.
  struct Sample {
    std::size_t source = 0;
    std::int64_t number = 0;
  };
  Sample sample_at(std::int64_t cursor) const;
  /// Announces that the sample at `cursor` will be read soon, see TokenSource::announce. A cursor behind the
  /// end of the blend is ignored.
  void announce(std::int64_t cursor) const;
  /// Writes the seq_len + 1 tokens of the sample at `cursor`, see TokenSource::read. Not thread-safe.
  std::int64_t read(std::int64_t cursor, std::span<std::int32_t> tokens_S1);
  /// Writes the loss weights of the same sample, see TokenSource::read_loss_weights.
  void read_loss_weights(std::int64_t cursor, std::span<float> weights_S);
  /// Finds where documents begin in the same sample, see TokenSource::read_document_starts.
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
