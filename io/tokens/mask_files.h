#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/options.h"
#include "io/tokens/source_files.h"

namespace trainerd::io {

// A loss mask is a file beside the tokens: a byte for each token, 1 where the prediction of this token counts
// in the loss, 0 where it does not.

/// Where the mask of a token file lies: `c.mask` for `c.bin`, else `FILE.mask`.
std::string mask_path_of(const std::string& data_path);

/// Gives files their masks: `masks` (files, directories or patterns, as DataOptions::train), one for each
/// file in their order; without any, of token files those whose `dataset.json` says `"loss_mask": true`
/// theirs. Throws DataError naming it: a mask of which no `dataset.json` says whether it counts, one that is
/// not there or has not as many bytes as its file tokens,
/// another number of masks than of files.
void attach_masks(std::vector<SourceFile>& files, const std::vector<std::string>& masks, DataFormat format);

/// The mask of one file, which may have none: what lies at `mask_path_of`. Throws DataError for its size, and
/// where the `dataset.json` says that there is one and it is not there.
void find_mask(SourceFile& file);

bool has_masks(std::span<const SourceFile> files);

/// The bytes of a mask.
struct MaskScan {
  std::int64_t tokens = 0, counted = 0;
  std::int64_t first_wrong = -1;  ///< position of the first byte that is neither 0 nor 1
  std::uint8_t wrong = 0;         ///< that byte
};
/// Scans a block of a mask that starts at `offset`.
MaskScan scan_mask(std::int64_t offset, std::span<const std::byte> bytes);
void add(MaskScan& sum, const MaskScan& later);
/// "x.mask: byte 7 at position 13 is ..."; empty: nothing is wrong.
std::string mask_problem(const std::string& path, const MaskScan& scan);

/// "37.5% of tokens count".
std::string share_text(const MaskScan& scan);

/// Reads samples of all masks (`sample_blocks`) or all of them: the scan of each file's. Throws DataError for
/// one that cannot be read.
enum class MaskReading : std::uint8_t { samples, whole };
std::vector<MaskScan> scan_masks(std::span<const SourceFile> files, MaskReading reading, int threads);

/// As `check_and_hash` of the files' masks. Throws DataError for a byte that is neither 0 nor 1.
std::string check_and_hash_masks(std::span<const SourceFile> files, int threads);

}  // namespace trainerd::io
