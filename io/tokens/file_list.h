#pragma once

#include <string>
#include <vector>

#include "io/files/data_files.h"

namespace trainerd::io {

struct ListedFile {
  std::string path;
  bool named =
      false;  ///< given by its own name, so that it must hold something; others may be empty and are skipped
};

/// The files that `paths` stand for, each once (two names of one file too), in the order of `paths` and
/// sorted by bytes within one of them. A path is a file, a directory (every regular file at any depth below
/// it) or, if nothing of that name exists, a pattern: `*`, `?` and `[]` match within one name and, as in a
/// shell, no leading dot; a name `**` matches any number of directories. A directory that a pattern matches
/// stands for its files. Links to directories are not followed downwards, so there are no loops. At s3://
/// what lies between slashes of a key is a name, and what keys have before a slash a directory. Throws
/// DataError: no such file, a pattern without a match, a device or pipe; what the store says.
std::vector<ListedFile> list_files(const std::vector<std::string>& paths, const DataFiles& from = {});

}  // namespace trainerd::io
