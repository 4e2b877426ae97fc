#pragma once

#include <string>

#include "io/http/http_client.h"
#include "io/s3/client.h"

// What a reply of a store means.

namespace trainerd::io {

/// "AccessDenied", where the body says it.
std::string error_code(const HttpResponse& reply);
/// Another try may succeed: the store is busy, or failed inside.
bool is_worth_retry(const HttpResponse& reply);
/// It may be that the credentials expired, or were replaced. A reply to HEAD does not say.
bool may_be_expired(const HttpResponse& reply, bool head);
/// "503 SlowDown: Please reduce your request rate."
std::string status_text(const HttpResponse& reply);
/// `doing`: "read"; `settings`: where the request went.
S3Error reply_error(const S3Path& path, const char* doing, const HttpResponse& reply,
                    const S3Settings& settings);

/// Of a reply of more than the `bytes` that were asked for.
S3Error too_long_error(const S3Path& path, const char* doing, std::size_t bytes);

}  // namespace trainerd::io
