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

/// Blocks that stand for files of these sizes, in order: the first and last bytes of each and blocks at even
/// distances between them, of 64 KiB (less for many thousands of files); a file that these would cover is
/// covered whole. At most 256 MiB in all, as long as that is 12 KiB per file. A function of the sizes alone.
std::vector<DataBlock> sample_blocks(std::span<const std::int64_t> file_bytes);
/// All of the files, in blocks of at most 4 MiB.
std::vector<DataBlock> all_blocks(std::span<const std::int64_t> file_bytes);

/// The ids of a block.
struct IdScan {
  std::int64_t tokens = 0;
  std::uint32_t largest = 0;        ///< of those from 0 to 2^31 - 1
  std::int64_t outside = 0;         ///< ids that are not in the vocabulary
  std::int64_t first_outside = -1;  ///< the position in the file of the first of them
  std::uint32_t first_outside_id = 0;
  bool upper_halves_zero = true;  ///< of 16 and 32 bits: every second id of the file is 0
  bool lower_halves_zero = true;  ///< the others are
};

/// Reads blocks in parallel and passes each with its bytes to `visit(index of the block, bytes)`, which is
/// called by several threads at once. Throws DataError for a file that cannot be read or became shorter, the
/// one of the first block in order.
void read_blocks(std::span<const SourceFile> files, std::span<const DataBlock> blocks, int threads,
                 const std::function<void(std::size_t, std::span<const std::byte>)>& visit);

/// Scans the ids in a block of `file`, which starts at byte `offset`. `vocab` 0: every id from 0 to
/// 2^31 - 1 is in the vocabulary.
IdScan scan_ids(const SourceFile& file, std::int64_t offset, std::span<const std::byte> bytes,
                std::int64_t vocab);

/// The first `count` ids of a file that has at least as many; -1 for what is beyond 31 bits. Throws
/// DataError.
std::vector<std::int32_t> read_ids(const SourceFile& file, std::int64_t count);

/// "x.bin: token 60000 at position 13 (byte 26) is outside the vocabulary of 100: ...".
std::string outside_text(const SourceFile& file, std::uint32_t id, std::int64_t position, std::int64_t vocab);

/// What is wrong with a file, from the `scan` of all or some of its blocks; empty: nothing.
std::string ids_problem(const SourceFile& file, const IdScan& scan, std::int64_t vocab);
/// Adds the scan of a later block of the same file.
void add(IdScan& sum, const IdScan& later);

/// Reads samples of all files: checks their ids, and gives the 128-bit XXH3 of their bytes and all sizes, as
/// hex. Throws DataError naming the file: an id that is not in the vocabulary, int32 stated as uint16.
std::string check_and_hash(std::span<const SourceFile> files, std::int64_t vocab, int threads);

}  // namespace trainerd::io
