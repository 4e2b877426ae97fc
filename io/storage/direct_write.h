#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace trainerd::io {

/// Writes `bytes` to a new file past the page cache, several pieces in parallel, to reach the rate of a fast
/// disk. Does not flush the file's metadata. Returns 0 or an errno value. EINVAL means that direct writes are
/// not possible (few or unaligned bytes, or a file system without them); the caller must then rewrite the
/// file from its beginning; ECANCELED that the write is not `wanted` any more (see storage.h).
int write_direct(int fd, std::span<const std::byte> bytes, const std::function<bool()>& wanted = {});

}  // namespace trainerd::io
