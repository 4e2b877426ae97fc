#pragma once

#include <string>
#include <vector>

namespace trainerd::io {

struct DataFile {
  std::string path;
  bool named =
      false;  ///< given by its own name, so that it must hold something; others may be empty and are skipped
};

/// The files that `paths` stand for, each once (two names of one file too), in the order of `paths` and
/// sorted by bytes within one of them. A path is a file, a directory (every regular file at any depth below
/// it) or, if nothing of that name exists, a pattern: `*`, `?` and `[]` match within one name and, as in a
/// shell, no leading dot; a name `**` matches any number of directories. A directory that a pattern matches
/// stands for its files. Links to directories are not followed downwards, so there are no loops. Throws
/// DataError: no such file, a pattern without a match, a device or pipe.
std::vector<DataFile> list_files(const std::vector<std::string>& paths);

}  // namespace trainerd::io
