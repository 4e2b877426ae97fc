#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/tokens/file_list.h"
#include "io/tokens/options.h"
#include "io/tokens/token_layout.h"

namespace trainerd::io {

/// One data file.
struct SourceFile {
  std::string path;
  std::int64_t bytes = 0;
  TokenLayout layout;
  std::string mask = {};  ///< path of its loss mask; empty: every token counts
  DataFiles from = {};    ///< opens the file, its index and its mask
};

/// Returns true if any data path is in an object store.
bool reads_objects(const DataOptions& options);

/// Lists the data files of `paths`. For tokens, `c.idx` is replaced by `c.bin`, and so is `c` if only `c.bin`
/// and `c.idx` exist. Indices beside a listed `name.bin`, loss masks (`name.mask`) and `dataset.json` are
/// left out, unless named themselves. Throws DataError as `list_files` and `check_datasets_are_whole` do.
std::vector<ListedFile> list_data(const std::vector<std::string>& paths, DataFormat format,
                                  const DataFiles& from = {});

/// Opens a file, detects its layout and closes it. `options.format` must not be synthetic. An empty file has
/// no tokens, and no layout unless it has an index. Throws DataError naming the file.
SourceFile open_source_file(const std::string& path, const DataOptions& options, std::int64_t vocab,
                            const DataFiles& from = {});

/// Opens all files of `paths` that hold tokens, in order. Throws DataError naming the file, also for an empty
/// file that was named itself.
std::vector<SourceFile> open_source_files(const std::vector<std::string>& paths, const DataOptions& options,
                                          std::int64_t vocab, const DataFiles& from = {});

/// Text that changes when a file of the training data, its index or its loss mask is replaced or written, or
/// when the files are others. Comparable on one machine only. Empty for synthetic tokens. Throws DataError.
std::string data_stamp(const DataOptions& options, const DataFiles& from = {});

}  // namespace trainerd::io
