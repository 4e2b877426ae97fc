#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace trainerd::base {

/// Writes `bytes` to `path` atomically: writes `path` + ".partial", flushes it, renames it over `path` and
/// flushes the directory. Returns 0 or an errno value. On failure before the rename the partial file is
/// removed and `path` is unchanged. `mode`: permissions of the file, before the umask.
int write_file_atomically(const std::string& path, std::span<const std::byte> bytes, unsigned mode = 0644);

}  // namespace trainerd::base
