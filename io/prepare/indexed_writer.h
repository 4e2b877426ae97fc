#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/hash/hash.h"
#include "io/tokens/options.h"
#include "kernels/base/fd.h"

namespace trainerd::io {

/// What is in one pair of files.
struct IndexedTotals {
  std::int64_t documents = 0, tokens = 0;
  std::int64_t bin_bytes = 0, idx_bytes = 0;
  std::string bin_hash, idx_hash;  ///< 128-bit XXH3

  bool operator==(const IndexedTotals&) const = default;
};

/// Writes one of Megatron's indexed data sets: tokens in STEM.bin, and in STEM.idx where documents begin,
/// each of one sequence (see `read_megatron_index`). Both are written under another name first: they appear
/// when they are complete and on the disk. Throws DataError naming the file that cannot be written.
class IndexedWriter {
 public:
  /// `type`: uint8, uint16 or int32, in which every id has a place.
  IndexedWriter(std::string stem, TokenType type);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  void add_document(std::span<const std::int32_t> ids);
  IndexedTotals finish();

 private:
  void flush();
  std::string stem_;
  TokenType type_;
  base::UniqueFd fd_;
  std::vector<std::byte> buffer_;
  std::vector<std::int32_t> lengths_;  // of documents, in tokens
  Xxh3 hash_;
  IndexedTotals totals_;
  bool finished_ = false;
};

}  // namespace trainerd::io
