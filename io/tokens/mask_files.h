#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/options.h"
#include "io/tokens/source_files.h"

namespace trainerd::io {

// A loss mask is a file beside the tokens. It has one byte per token: 1 if the prediction of this token
// counts in the loss, else 0.

/// Returns the path of a token file's mask: `c.mask` for `c.bin`, else `FILE.mask`.
std::string mask_path_of(const std::string& data_path);

/// Assigns loss masks to `files`. `masks` lists files, directories or patterns (as DataOptions::train) with
/// one mask per file, in the same order. If it is empty, token files get masks when their `dataset.json` says
/// `"loss_mask": true`. Throws DataError naming the mask: no `dataset.json` says whether it counts, it is
/// missing, or its number of bytes differs from the number of tokens. Throws also if the number of masks
/// differs from the number of files.
void attach_masks(std::vector<SourceFile>& files, const std::vector<std::string>& masks, DataFormat format);

/// Assigns the mask at `mask_path_of`, if there is one. Throws DataError if its size is wrong, or if the
/// `dataset.json` declares a mask that is missing.
void find_mask(SourceFile& file);

bool has_masks(std::span<const SourceFile> files);

/// Result of scanning the bytes of a mask.
struct MaskScan {
  std::int64_t tokens = 0, counted = 0;
  std::int64_t first_wrong = -1;  ///< position of the first byte that is neither 0 nor 1
  std::uint8_t wrong = 0;         ///< that byte
};
/// Scans a block of a mask that starts at `offset`.
MaskScan scan_mask(std::int64_t offset, std::span<const std::byte> bytes);
void add(MaskScan& sum, const MaskScan& later);
/// "x.mask: byte 7 at position 13 is ..."; empty if nothing is wrong.
std::string mask_problem(const std::string& path, const MaskScan& scan);

/// "37.5% of tokens count".
std::string share_text(const MaskScan& scan);

/// Scans all masks, whole or in samples (`sample_blocks`). Returns one scan per file. Throws DataError for a
/// mask that cannot be read.
enum class MaskReading : std::uint8_t { samples, whole };
std::vector<MaskScan> scan_masks(std::span<const SourceFile> files, MaskReading reading, int threads);

/// As `check_and_hash`, for the masks. Throws DataError for a byte that is neither 0 nor 1.
std::string check_and_hash_masks(std::span<const SourceFile> files, int threads);

}  // namespace trainerd::io
