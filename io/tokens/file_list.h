#pragma once

#include <string>
#include <vector>

#include "io/files/data_files.h"

namespace trainerd::io {

struct ListedFile {
  std::string path;
  bool named = false;  ///< given by its own name: it must not be empty; other empty files are skipped
};

/// Expands `paths` to files. Each file appears once, also if it has two names. Files keep the order of
/// `paths` and are sorted by bytes within one path. A path is a file, a directory (all regular files below
/// it) or, if nothing has that name, a pattern. In a pattern `*`, `?` and `[]` match within one name and no
/// leading dot, as in a shell; a name `**` matches any number of directories. A matched directory stands for
/// its files. Links to directories are not followed during the descent, so there are no loops. In s3:// keys
/// the parts between slashes are names and a prefix that ends at a slash is a directory. Throws DataError: no
/// such file, a pattern without a match, a device or pipe, an error of the store.
std::vector<ListedFile> list_files(const std::vector<std::string>& paths, const DataFiles& from = {});

}  // namespace trainerd::io
