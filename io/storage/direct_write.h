#pragma once

#include <cstddef>
#include <span>

namespace trainerd::io {

/// Writes `bytes` to a new file past the page cache, several pieces at once, which reaches the rate of a fast
/// disk. Not flushed: the file's size and place are not on the disk yet. Returns 0 or an errno value; EINVAL
/// where it cannot be done so: small or unaligned bytes, or a file system that has no such writes. Then the
/// file is to be written from its beginning in another way.
int write_direct(int fd, std::span<const std::byte> bytes);

}  // namespace trainerd::io
