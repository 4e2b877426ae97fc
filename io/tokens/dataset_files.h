#pragma once

#include <span>

#include "io/files/data_files.h"
#include "io/tokens/file_list.h"

namespace trainerd::io {

/// Checks that each directory written by `trainerd data prepare` is complete. `files` is the expanded list of
/// directories and patterns; it must contain every file that a dataset.json in it names. Throws DataError for
/// a missing file or an invalid dataset.json.
void check_datasets_are_whole(std::span<const ListedFile> files, const DataFiles& from);

}  // namespace trainerd::io
