#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/storage/storage.h"

// Names in a run's checkpoint directory. "step-00000010" is a checkpoint once COMPLETE is in it; ".old" is
// the previous one of the same step while it is being replaced; ".partial-*" is being written or removed:
// ".partial-step-00000010-RUN" by the nodes of the run of that name.

namespace trainerd::io {

inline constexpr std::string_view kReplaced = ".old";
inline constexpr std::string_view kPartialPrefix = ".partial-";

struct Folder {
  std::int64_t step = 0;
  bool replaced = false;
  std::string name;
};

std::string folder_name(std::int64_t step);
std::optional<Folder> parse_folder(const std::string& name);
/// Throws StorageError when it cannot be seen.
bool is_complete(const Storage& storage, const std::string& folder);

struct Folders {
  /// Newest step first; a replaced one only where its successor was never completed.
  std::vector<Folder> complete;
  /// Newest step first: those of steps without a complete one.
  std::vector<Folder> incomplete;
};
/// Throws StorageError when one of them cannot be looked at: nothing is known to be absent then.
Folders folders_of(const Storage& storage);

}  // namespace trainerd::io
