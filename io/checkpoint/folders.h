#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/storage/storage.h"

// Names in a run's checkpoint directory. "step-00000010" is a checkpoint once it contains COMPLETE. A step
// that is saved again (after a rollback, or because its folder exists) gets a folder for its new attempt:
// "step-00000010.2". Versions without attempts ignore it. Their leftovers: "step-00000010.old" is the one
// before "step-00000010"; ".partial-*" was being written or removed.

namespace trainerd::io {

inline constexpr std::string_view kPartialPrefix = ".partial-";

struct Folder {
  std::int64_t step = 0;
  std::int64_t attempt = 1;  ///< 0: ".old" of earlier versions
  std::string name;
  bool good = false;  ///< tagged as good; only for a complete one
};

std::string folder_name(std::int64_t step, std::int64_t attempt = 1);
std::optional<Folder> parse_folder(const std::string& name);
/// Returns true if the marker exists with all its bytes; a kill may leave it empty. Throws StorageError if it
/// cannot be accessed.
bool is_complete(const Storage& storage, const std::string& folder);

/// Sorted by descending step, then by descending attempt.
struct Folders {
  std::vector<Folder> complete;
  std::vector<Folder> incomplete;
};
/// Throws StorageError if one of them cannot be accessed, because then absence cannot be assumed.
Folders folders_of(const Storage& storage);

}  // namespace trainerd::io
