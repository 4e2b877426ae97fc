#pragma once

#include <cstdint>

#include "io/s3/client.h"
#include "io/storage/storage.h"

namespace trainerd::io {

/// Uploads a file to an object, whole or in parts. An object with the same bytes is kept, and so are parts of
/// an unfinished upload. Returns the number of bytes sent. Throws S3Error.
std::int64_t upload_file(S3Client& client, const S3Path& path, const StoredFile& from, const Pace& pace);

}  // namespace trainerd::io
