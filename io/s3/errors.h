#pragma once

#include <string>

#include "io/http/http_client.h"
#include "io/s3/client.h"

// Meaning of a store's replies.

namespace trainerd::io {

/// Returns the code in the body, such as "AccessDenied"; empty if there is none.
std::string error_code(const HttpResponse& reply);
/// True if a retry may succeed: the store is busy or had an internal error.
bool is_worth_retry(const HttpResponse& reply);
/// True if the credentials may be expired or replaced. The reply to HEAD has no code, so its status decides.
bool may_be_expired(const HttpResponse& reply, bool head);
/// Returns status, code and message: "503 SlowDown: Please reduce your request rate."
std::string status_text(const HttpResponse& reply);
/// `doing`: the failed operation, as "read"; `settings`: the address that was used.
S3Error reply_error(const S3Path& path, const char* doing, const HttpResponse& reply,
                    const S3Settings& settings);

/// Error for a reply of more than the requested `bytes`.
S3Error too_long_error(const S3Path& path, const char* doing, std::size_t bytes);

}  // namespace trainerd::io
