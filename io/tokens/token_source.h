#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/document_split.h"
#include "io/tokens/fd_cache.h"
#include "io/tokens/options.h"

namespace trainerd::io {

/// The p-th element of a keyed pseudo-random permutation of [0, n): a Feistel network over the next even
/// power of two, walked until it lands inside. Pure arithmetic: no shuffled index exists.
std::uint64_t permute_index(std::uint64_t p, std::uint64_t n, std::uint64_t key);

/// What synthetic tokens are keyed by beside the seed: two streams have nothing in common.
inline constexpr const char* kTrainStream = "training";
inline constexpr const char* kValidStream = "validation";

enum class SampleOrder : unsigned char { shuffled, in_order };

/// A stream of tokens cut into samples of `seq_len` + 1 tokens that start every `seq_len` tokens. Which
/// sample has place `cursor` in the endless sequence of epochs is arithmetic on (seed, epoch, place): a run's
/// position is one integer. With `options.packing` best_fit or pairs a sample is a packed sequence
/// (packing.h), behind whose tokens zeros follow that do not count. Files are read by position through open
/// descriptors; one that is truncated meanwhile is a DataError, not a fault.
class TokenSource {
 public:
  /// Of a stream beside its files.
  struct Reading {
    SampleOrder order = SampleOrder::shuffled;
    std::string stream = kTrainStream;
    DataPart part = DataPart::all;                 ///< by `options.valid_fraction`
    std::size_t open_files = FdCache::kOpenFiles;  ///< at most
    std::vector<std::string> masks = {};           ///< as DataOptions::mask
    DataFiles files = {};                          ///< what opens them
  };
  /// Opens every file of `paths` (see DataOptions). Throws DataError naming the file: absent, empty,
  /// unreadable, shorter than its header says, without documents where only some are read, or holding fewer
  /// than seq_len + 1 tokens in all.
  TokenSource(const std::vector<std::string>& paths, const DataOptions& options, std::int64_t seq_len,
              std::int64_t vocab, std::uint64_t seed, const Reading& reading);
  /// All of the files.
  TokenSource(const std::vector<std::string>& paths, const DataOptions& options, std::int64_t seq_len,
              std::int64_t vocab, std::uint64_t seed, SampleOrder order,
              const std::string& stream = kTrainStream)
      : TokenSource(paths, options, seq_len, vocab, seed, Reading{.order = order, .stream = stream}) {}
  ~TokenSource();
  TokenSource(TokenSource&&) noexcept;
  TokenSource& operator=(TokenSource&&) noexcept;

  std::int64_t tokens() const;   ///< of one epoch
  std::int64_t samples() const;  ///< of one epoch
  /// Packed samples that have `options.max_documents` and room for more.
  std::int64_t limited_samples() const;
  /// Places in files that a sample is read from, on average, rounded up: several where it is packed, twice as
  /// many with loss masks.
  std::int64_t places_per_sample() const;
  /// Identifies the files (names, sizes, format, which have loss masks) and seq_len: recorded in checkpoints,
  /// compared on resume.
  std::string fingerprint() const;
  /// Reads samples of every file on `threads` threads (at most 256 MiB, see `sample_blocks`) and identifies
  /// their content: the same on every machine and for every number of threads. Empty for synthetic tokens.
  /// Throws DataError naming file and position: an id that is not in the vocabulary.
  std::string check_samples(int threads) const;

  /// The order of samples starts at `cursor`, with a new epoch 0 of permutations of its own for each number
  /// `stream`: a run whose data was replaced there. Before: at cursor 0, with stream 0.
  void start_order(std::int64_t cursor, std::int64_t stream);

  /// Which of samples() the sample at `cursor` is.
  std::int64_t sample_at(std::int64_t cursor) const;
  /// The sample at `cursor` will be read soon: what it needs of remote files is fetched.
  void announce(std::int64_t cursor) const;
  /// Writes the seq_len + 1 tokens of place `cursor`: inputs are all but the last, targets all but the first.
  /// Throws DataError for a short read or a token >= vocab, naming file and position. Allocates nothing. Not
  /// for two threads at once.
  void read(std::int64_t cursor, std::span<std::int32_t> tokens_S1);
  /// Writes the loss weights of the same sample: element s is 1 where the prediction of its token s + 1
  /// counts, else 0. Throws DataError as above, and for a mask's byte that is neither.
  void read_loss_weights(std::int64_t cursor, std::span<float> weights_S);
  /// Which of tokens 1 to seq_len of the same sample begin a document, rising; `tokens_S1` is what `read`
  /// wrote. What pads a packed sequence is a document. Throws DataError for a sample of more than
  /// `options.max_documents`, where attention stays inside them.
  void read_document_starts(std::int64_t cursor, std::span<const std::int32_t> tokens_S1,
                            std::vector<std::int32_t>& starts);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
