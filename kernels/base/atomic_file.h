#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace trainerd::base {

/// Puts `bytes` under `path`, whole or not at all: written aside (`path` + ".partial"), flushed, renamed over
/// what was there, and the directory flushed. Returns 0 or an errno value; on failure before the rename
/// nothing is left aside and what was at `path` stays. `mode`: the file's permissions, less the umask.
int write_file_atomically(const std::string& path, std::span<const std::byte> bytes, unsigned mode = 0644);

}  // namespace trainerd::base
