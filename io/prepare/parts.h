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

/// What becomes one pair of token files.
struct Part {
  std::vector<DocumentRange> ranges;
  std::int64_t bytes = 0;  ///< of the ranges
  std::string key;         ///< of all that its tokens depend on: what was made by another key is made again
};

/// The files of `options.inputs` that hold something, and how their documents lie in them. Throws DataError:
/// a kind of file that is not read (Parquet, an archive, token files), nothing to read.
std::vector<InputFile> list_inputs(const PrepareOptions& options);

/// Cuts the inputs into parts of like size, in order: by their sizes and by where documents begin, never by
/// the number of workers. `settings` goes into each key.
std::vector<Part> make_parts(const std::vector<InputFile>& inputs, const std::string& settings,
                             const DataFiles& files = {});

}  // namespace trainerd::io
