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

/// Contents of one pair of files.
struct IndexedTotals {
  std::int64_t documents = 0, tokens = 0;
  std::int64_t bin_bytes = 0, idx_bytes = 0;
  std::int64_t learned = 0;                   ///< tokens that count in the loss, if there is a mask
  std::string bin_hash, idx_hash, mask_hash;  ///< 128-bit XXH3; mask_hash is empty without a mask

  bool operator==(const IndexedTotals&) const = default;
};

/// Returns the size of an index of that many documents.
std::int64_t index_bytes(std::int64_t documents);

/// Writes a Megatron indexed data set: tokens to STEM.bin, document boundaries to STEM.idx (one sequence per
/// document, see `read_megatron_index`), and with a mask one byte per token to STEM.mask: 1 if its prediction
/// counts in the loss, else 0. The files get their final names when they are complete and flushed. Throws
/// DataError naming the file that cannot be written.
class IndexedWriter {
 public:
  /// `type`: uint8, uint16 or int32; it must fit every id.
  IndexedWriter(std::string stem, TokenType type, LossMask mask);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  /// `mask`: as long as `ids`; empty in a data set without masks.
  void add_document(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask);
  IndexedTotals finish();

 private:
  /// A growing file: the bytes that are not written yet, and the hash of those that are.
  struct Growing {
    std::string path;  ///< final path
    base::UniqueFd fd;
    std::vector<std::byte> buffer;
    Xxh3 hash;
    std::int64_t bytes = 0;
    bool finished = false;

    explicit Growing(std::string name);
    ~Growing();
    void flush();
    /// Writes and flushes the file, still under its temporary name.
    void close();
    void publish();
  };

  std::string stem_;
  TokenType type_;
  Growing bin_;
  std::optional<Growing> mask_;
  std::vector<std::int32_t> lengths_;  // tokens per document
  IndexedTotals totals_;
};

}  // namespace trainerd::io
