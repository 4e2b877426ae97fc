#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/hash/hash.h"
#include "io/tokens/options.h"
#include "kernels/base/fd.h"

namespace trainerd::io {

enum class LossMask : std::uint8_t { none, written };

/// What is in one pair of files.
struct IndexedTotals {
  std::int64_t documents = 0, tokens = 0;
  std::int64_t bin_bytes = 0, idx_bytes = 0;
  std::int64_t learned = 0;                   ///< tokens that count in the loss, where there is a mask
  std::string bin_hash, idx_hash, mask_hash;  ///< 128-bit XXH3; without a mask the last is empty

  bool operator==(const IndexedTotals&) const = default;
};

/// Size of the index of so many documents.
std::int64_t index_bytes(std::int64_t documents);

/// Writes one of Megatron's indexed data sets: tokens in STEM.bin, and in STEM.idx where documents begin,
/// each of one sequence (see `read_megatron_index`), and with a mask in STEM.mask a byte for each token: 1
/// where its prediction counts in the loss, else 0. They are written under another name first: they appear
/// when they are complete and on the disk. Throws DataError naming the file that cannot be written.
class IndexedWriter {
 public:
  /// `type`: uint8, uint16 or int32, in which every id has a place.
  IndexedWriter(std::string stem, TokenType type, LossMask mask);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  /// `mask`: as long as `ids`, or empty in a data set without one.
  void add_document(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask);
  IndexedTotals finish();

 private:
  /// A file that grows: its bytes that are not written yet, and the hash of those that are.
  struct Growing {
    std::string path;  ///< of the finished file
    base::UniqueFd fd;
    std::vector<std::byte> buffer;
    Xxh3 hash;
    std::int64_t bytes = 0;
    bool finished = false;

    explicit Growing(std::string name);
    ~Growing();
    void flush();
    /// On the disk, under the other name still.
    void close();
    void publish();
  };

  std::string stem_;
  TokenType type_;
  Growing bin_;
  std::optional<Growing> mask_;
  std::vector<std::int32_t> lengths_;  // of documents, in tokens
  IndexedTotals totals_;
};

}  // namespace trainerd::io
