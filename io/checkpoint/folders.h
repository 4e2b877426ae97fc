#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/storage/storage.h"

// Names in a run's checkpoint directory. "step-00000010" is a checkpoint once COMPLETE is in it. A step that
// is saved again, after a rollback or because its folder is there, has a folder of its own attempt:
// "step-00000010.2", which versions without attempts ignore. Of theirs, "step-00000010.old" is the one before
// "step-00000010", and ".partial-*" was being written or removed.

namespace trainerd::io {

inline constexpr std::string_view kPartialPrefix = ".partial-";

struct Folder {
  std::int64_t step = 0;
  std::int64_t attempt = 1;  ///< 0: ".old" of earlier versions
  std::string name;
  bool good = false;  ///< of a complete one: it is tagged
};

std::string folder_name(std::int64_t step, std::int64_t attempt = 1);
std::optional<Folder> parse_folder(const std::string& name);
/// Whether the marker is there with all its bytes: a kill may leave it with none. Throws StorageError when it
/// cannot be seen.
bool is_complete(const Storage& storage, const std::string& folder);

/// Newest step first, and of one step the newest attempt.
struct Folders {
  std::vector<Folder> complete;
  std::vector<Folder> incomplete;
};
/// Throws StorageError when one of them cannot be looked at: nothing is known to be absent then.
Folders folders_of(const Storage& storage);

}  // namespace trainerd::io
