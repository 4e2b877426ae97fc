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

/// Returns the p-th element of a keyed pseudo-random permutation of [0, n): a Feistel network over the next
/// even power of two, repeated until the result is below n. Pure arithmetic: no shuffled index is stored.
std::uint64_t permute_index(std::uint64_t p, std::uint64_t n, std::uint64_t key);

/// Keys of synthetic tokens, in addition to the seed. Different streams are independent.
inline constexpr const char* kTrainStream = "training";
inline constexpr const char* kValidStream = "validation";

enum class SampleOrder : unsigned char { shuffled, in_order };

/// A stream of tokens cut into samples of `seq_len` + 1 tokens, one every `seq_len` tokens. The sample at
/// place `cursor` of the endless sequence of epochs is computed from (seed, epoch, place), so a run's
/// position is one integer. With `options.packing` best_fit or pairs a sample is a packed sequence
/// (packing.h), padded with zeros that do not count in the loss. Files are read by offset through open
/// descriptors; a file that is truncated meanwhile gives a DataError.
class TokenSource {
 public:
  /// Options of a stream, apart from its files.
  struct Reading {
    SampleOrder order = SampleOrder::shuffled;
    std::string stream = kTrainStream;
    DataPart part = DataPart::all;                 ///< split by `options.valid_fraction`
    std::size_t open_files = FdCache::kOpenFiles;  ///< most descriptors kept open
    std::vector<std::string> masks = {};           ///< as DataOptions::mask
    DataFiles files = {};                          ///< opens the files
  };
  /// Opens every file of `paths` (see DataOptions). Throws DataError naming a file that is absent, empty,
  /// unreadable, shorter than its header says, or without an index although only some documents are read.
  /// Throws also if the files hold fewer than seq_len + 1 tokens in all.
  TokenSource(const std::vector<std::string>& paths, const DataOptions& options, std::int64_t seq_len,
              std::int64_t vocab, std::uint64_t seed, const Reading& reading);
  /// As above, with all documents of the files.
  TokenSource(const std::vector<std::string>& paths, const DataOptions& options, std::int64_t seq_len,
              std::int64_t vocab, std::uint64_t seed, SampleOrder order,
              const std::string& stream = kTrainStream)
      : TokenSource(paths, options, seq_len, vocab, seed, Reading{.order = order, .stream = stream}) {}
  ~TokenSource();
  TokenSource(TokenSource&&) noexcept;
  TokenSource& operator=(TokenSource&&) noexcept;

  std::int64_t tokens() const;   ///< per epoch
  std::int64_t samples() const;  ///< per epoch
  /// Number of packed samples that hold `options.max_documents` documents and have room for more.
  std::int64_t limited_samples() const;
  /// Average number of reads per sample, rounded up: several with packing, twice as many with loss masks.
  std::int64_t places_per_sample() const;
  /// Text that identifies the files (names, sizes, token width, tokenizer, number of loss masks), the
  /// packing, the split and seq_len. It is saved in checkpoints and compared on resume.
  std::string fingerprint() const;
  /// Checks samples of every file on `threads` threads (about 256 MiB, see `sample_blocks`) and returns a
  /// hash of them. The hash does not depend on the machine or `threads`. Empty for synthetic tokens. Throws
  /// DataError naming file and position for an id outside the vocabulary.
  std::string check_samples(int threads) const;

  /// Starts a new order of samples at `cursor`, from epoch 0. Each `stream` has its own permutations. A run
  /// uses this when its data was replaced. The default is cursor 0 and stream 0.
  void start_order(std::int64_t cursor, std::int64_t stream);

  /// Returns the number of the sample at `cursor`, in [0, samples()).
  std::int64_t sample_at(std::int64_t cursor) const;
  /// Announces that the sample at `cursor` will be read soon: starts to fetch its bytes of remote files.
  void announce(std::int64_t cursor) const;
  /// Writes the seq_len + 1 tokens at place `cursor`: inputs are all but the last, targets all but the first.
  /// Returns how many of them are the data's; the rest is padding. Allocates nothing. Not thread-safe. Throws
  /// DataError naming file and position for a short read or a token >= vocab.
  std::int64_t read(std::int64_t cursor, std::span<std::int32_t> tokens_S1);
  /// Writes the loss weights of the same sample: element s is 1 if the prediction of token s + 1 counts, else
  /// 0. Throws DataError as `read` does, and for a mask byte that is neither 0 nor 1.
  void read_loss_weights(std::int64_t cursor, std::span<float> weights_S);
  /// Finds which of tokens 1 to seq_len of the same sample begin a document, in ascending order. `tokens_S1`
  /// is the output of `read`. The padding of a packed sequence is a document. Throws DataError for a sample
  /// with more than `options.max_documents` documents if attention stays inside documents.
  void read_document_starts(std::int64_t cursor, std::span<const std::int32_t> tokens_S1,
                            std::vector<std::int32_t>& starts);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
