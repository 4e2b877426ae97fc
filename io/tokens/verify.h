#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/tokens/inspect.h"

namespace trainerd::io {

struct Verification {
  std::string text;                   ///< human-readable: counts, and the checksum of every file
  std::vector<std::string> problems;  ///< each names a file, what is wrong with it and what to do
};

/// Implements `trainerd data verify PATH...`. Reads every byte of the files of `paths` (see `list_data`; `c`
/// and `c.idx` also name Megatron's `c.bin`) and checks
/// - that header or index match the size of the file;
/// - that every id is in the vocabulary, if one is given;
/// - that the sequences and documents of an index are contiguous from the first token to the last;
/// - the size and every byte of a loss mask beside it (see mask_files.h);
/// - what the `dataset.json` beside it records: whether it has a mask, and the checksums of the files;
/// - its checksum, if a file `PATH.xxh128` holds the output of `xxhsum -H2`.
/// Empty documents are counted but are no problem. `options.all` is ignored. Throws DataError if there is no
/// such file.
Verification verify_data(const std::vector<std::string>& paths, const InspectOptions& options);

}  // namespace trainerd::io
