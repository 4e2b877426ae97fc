#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/tokens/inspect.h"

namespace trainerd::io {

struct Verification {
  std::string text;                   ///< for people: counts, and the checksum of every file
  std::vector<std::string> problems;  ///< each naming a file, what is wrong with it and what to do
};

/// What `trainerd data verify PATH...` finds: reads every byte of the files that `paths` stand for (see
/// `list_data`; Megatron's `c.bin` goes by `c` and `c.idx` too) and checks
///   - that header or index say the size that the file has;
///   - that every id is in the vocabulary, where one is given;
///   - of an index every sequence and document: that they follow each other from the first token to the last;
///   - of a loss mask beside it (see mask_files.h) its size and every byte;
///   - what the `dataset.json` beside it says: that it has a mask, and the checksums of the files;
///   - the checksum of each, where a file `PATH.xxh128` has the one that `xxhsum -H2` printed.
/// Empty documents are counted; they are no problem. `options.all` has no meaning. Throws DataError where
/// there is no such file.
Verification verify_data(const std::vector<std::string>& paths, const InspectOptions& options);

}  // namespace trainerd::io
