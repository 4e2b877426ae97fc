#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/source_files.h"

namespace trainerd::io {

/// Bytes [offset, offset + bytes) of a file. `offset` is a multiple of 4.
struct DataBlock {
  std::size_t file = 0;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;

  bool operator==(const DataBlock&) const = default;
};

/// Returns sample blocks of files of the given sizes, in order: the first and last bytes of each file, and
/// blocks at even distances between them. A block has 64 KiB, less with many thousands of files. A file that
/// the blocks would cover is covered whole. At most 256 MiB in all, but at least 12 KiB per file. Depends
/// only on the sizes.
std::vector<DataBlock> sample_blocks(std::span<const std::int64_t> file_bytes);
/// Returns blocks of at most 4 MiB that cover all files.
std::vector<DataBlock> all_blocks(std::span<const std::int64_t> file_bytes);

/// Result of scanning the ids of a block.
struct IdScan {
  std::int64_t tokens = 0;
  std::uint32_t largest = 0;        ///< largest id in [0, 2^31)
  std::int64_t outside = 0;         ///< ids that are not in the vocabulary
  std::int64_t first_outside = -1;  ///< position in the file of the first such id
  std::uint32_t first_outside_id = 0;
  bool upper_halves_zero = true;  ///< 16- and 32-bit ids: all ids at odd positions are 0
  bool lower_halves_zero = true;  ///< the same for even positions
};

/// Reads blocks in parallel. Calls `visit(index of the block, bytes)` from several threads at once. Throws
/// DataError if a file cannot be read or became shorter; the first such block in order is reported.
void read_blocks(std::span<const SourceFile> files, std::span<const DataBlock> blocks, int threads,
                 const std::function<void(std::size_t, std::span<const std::byte>)>& visit);

/// Scans the ids in a block of `file` that starts at byte `offset`. `vocab` 0: the vocabulary is [0, 2^31).
IdScan scan_ids(const SourceFile& file, std::int64_t offset, std::span<const std::byte> bytes,
                std::int64_t vocab);

/// Returns the first `count` ids of a file that has at least `count`. A 64-bit id beyond 31 bits becomes -1.
/// Throws DataError.
std::vector<std::int32_t> read_ids(const SourceFile& file, std::int64_t count);

/// "x.bin: token 60000 at position 13 (byte 26) is outside the vocabulary of 100: ...".
std::string outside_text(const SourceFile& file, std::uint32_t id, std::int64_t position, std::int64_t vocab);

/// Returns what is wrong with a file, from the `scan` of some or all of its blocks; empty if nothing is.
std::string ids_problem(const SourceFile& file, const IdScan& scan, std::int64_t vocab);
/// Adds the scan of a later block of the same file to `sum`.
void add(IdScan& sum, const IdScan& later);

/// Checks the ids in samples of all files. Returns the 128-bit XXH3 of the samples' bytes and all file sizes,
/// in hex. Throws DataError naming the file: an id outside the vocabulary, int32 data stated as uint16.
std::string check_and_hash(std::span<const SourceFile> files, std::int64_t vocab, int threads);

}  // namespace trainerd::io
