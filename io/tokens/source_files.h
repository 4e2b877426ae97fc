#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/tokens/file_list.h"
#include "io/tokens/options.h"
#include "io/tokens/token_layout.h"

namespace trainerd::io {

/// One file of the data.
struct SourceFile {
  std::string path;
  std::int64_t bytes = 0;
  TokenLayout layout;
  std::string mask = {};  ///< the file of its loss mask; empty: every token counts
  DataFiles from = {};    ///< what opens all of them
};

/// Whether any path of the data is of an object store.
bool reads_objects(const DataOptions& options);

/// What `paths` list for `format`: for tokens `c.bin` for `c.idx`, and for `c` where only `c.bin` and `c.idx`
/// exist, and without the indices (`name.idx`) that were not named themselves and whose `name.bin` is listed,
/// and without the `dataset.json` and the loss masks (`name.mask`) of `trainerd data prepare`. Throws
/// DataError as `list_files` does.
std::vector<ListedFile> list_data(const std::vector<std::string>& paths, DataFormat format,
                                  const DataFiles& from = {});

/// Opens a file, finds its layout, closes it. Throws DataError naming it. `options.format` is not synthetic.
/// An empty file has no tokens, and without an index no layout.
SourceFile open_source_file(const std::string& path, const DataOptions& options, std::int64_t vocab,
                            const DataFiles& from = {});

/// All files of `paths` that hold tokens, one after the other. Throws DataError naming the file, also one
/// that is empty and was named itself.
std::vector<SourceFile> open_source_files(const std::vector<std::string>& paths, const DataOptions& options,
                                          std::int64_t vocab, const DataFiles& from = {});

}  // namespace trainerd::io
