#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/prepare/documents.h"
#include "io/prepare/prepare.h"

namespace trainerd::io {

struct InputFile {
  std::string path;
  FileStamp stamp;
  DocumentKind kind = DocumentKind::file;
};

/// The input of one pair of token files.
struct Part {
  std::vector<DocumentRange> ranges;
  std::int64_t bytes = 0;  ///< size of all ranges
  std::string key;         ///< hash of all that its tokens depend on; a part with another key is made again
};

/// Lists the non-empty files of `options.inputs` with their document kinds. Throws DataError for an
/// unsupported kind of file (Parquet, an archive, token files) or if there is nothing to read.
std::vector<InputFile> list_inputs(const PrepareOptions& options);

/// Cuts the inputs into parts of similar size, in order. The cuts depend on file sizes and document starts,
/// not on the number of workers. `settings` is part of each key.
std::vector<Part> make_parts(const std::vector<InputFile>& inputs, const std::string& settings,
                             const DataFiles& files = {});

}  // namespace trainerd::io
