#pragma once

#include <span>

#include "io/files/data_files.h"
#include "io/tokens/file_list.h"

namespace trainerd::io {

/// A directory that `trainerd data prepare` wrote is whole: `files`, what directories and patterns stand for,
/// has all that a dataset.json among them names. Throws DataError: a file is missing, the dataset.json is
/// broken.
void check_datasets_are_whole(std::span<const ListedFile> files, const DataFiles& from);

}  // namespace trainerd::io
