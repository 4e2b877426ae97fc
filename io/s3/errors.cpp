#include "io/s3/errors.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "io/s3/xml.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kShown = 300;

template <std::size_t N>
bool is_one_of(const std::string& code, const std::array<std::string_view, N>& codes) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

// Returns the bucket's region if the store says that it is another one.
std::string other_region(const HttpResponse& reply) {
  const auto header = reply.headers.find("x-amz-bucket-region");
  if (header != reply.headers.end()) return header->second;
  return xml_text(reply.body, "Region").value_or("");
}

std::string remedy_of_denial(const std::string& code) {
  if (code == "RequestTimeTooSkewed") return "the clock of this machine is wrong: set it";
  if (code == "SignatureDoesNotMatch")
    return "the secret key does not belong to the access key: set both anew";
  if (code == "InvalidAccessKeyId") return "the store does not know the access key: set the credentials anew";
  return "the credentials do not allow it, or have expired: use others, or give these the right "
         "(s3:GetObject and s3:ListBucket to read; s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload, "
         "s3:ListMultipartUploadParts and s3:ListBucketMultipartUploads to write)";
}

}  // namespace

std::string error_code(const HttpResponse& reply) { return xml_text(reply.body, "Code").value_or(""); }

bool is_worth_retry(const HttpResponse& reply) {
  switch (reply.status) {
    case 408:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504: return true;
    case 400: return error_code(reply) == "RequestTimeout";
    // A store that fails after it began to answer sends status 200.
    case 200: return reply.body.find("<Error>") != std::string::npos && error_code(reply) == "InternalError";
    default: return false;
  }
}

bool may_be_expired(const HttpResponse& reply, bool head) {
  if (reply.status != 400 && reply.status != 401 && reply.status != 403) return false;
  constexpr std::array<std::string_view, 5> kCodes{"ExpiredToken", "ExpiredTokenException", "InvalidToken",
                                                   "TokenRefreshRequired", "InvalidAccessKeyId"};
  return head || is_one_of(error_code(reply), kCodes);
}

std::string status_text(const HttpResponse& reply) {
  const std::string code = error_code(reply), message = xml_text(reply.body, "Message").value_or("");
  std::string text = std::to_string(reply.status) + (code.empty() ? "" : " " + code) +
                     (message.empty() ? "" : ": " + message);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return text.substr(0, kShown);
}

S3Error reply_error(const S3Path& path, const char* doing, const HttpResponse& reply,
                    const S3Settings& settings) {
  using Kind = S3Error::Kind;
  const std::string failed = path.text() + ": cannot " + doing + " (" + status_text(reply) + "): ";
  const std::string code = error_code(reply), region = other_region(reply);
  const bool elsewhere = reply.status == 301 || reply.status == 307 ||
                         (reply.status == 400 && code == "AuthorizationHeaderMalformed");
  if (elsewhere && !region.empty() && region != settings.region)
    return {Kind::refused, failed + "the bucket " + path.bucket + " is in the region " + region +
                               ", and the request went to " + settings.region + ": set AWS_REGION=" + region};
  if (elsewhere)
    return {Kind::refused, failed + "the bucket " + path.bucket +
                               " is at another address: set AWS_REGION and AWS_ENDPOINT_URL to its own"};
  if (code == "NoSuchBucket")
    return {Kind::absent, failed + "there is no bucket " + path.bucket +
                              (settings.endpoint.empty() ? "" : " at " + settings.endpoint) +
                              ": check its name"};
  if (reply.status == 404) return {Kind::absent, failed + "there is no such object: check the key"};
  if (reply.status == 412)
    return {Kind::changed, failed + "the object was replaced since it was opened: restore it and resume"};
  if (reply.status == 416)
    return {Kind::changed, failed + "the object became shorter since it was opened: restore it and resume"};
  if (reply.status >= 300 && reply.status < 400) {
    const auto location = reply.headers.find("location");
    return {Kind::refused,
            failed + "the store sends the request elsewhere" +
                (location == reply.headers.end() ? "" : ", to " + location->second.substr(0, kShown)) +
                ", and a signed request is not sent on: set AWS_ENDPOINT_URL to the store's own address"};
  }
  if (code == "InvalidObjectState")
    return {Kind::refused,
            failed + "the object is archived: restore it to a class that can be read, and resume"};
  if (reply.status == 403 || reply.status == 401 || may_be_expired(reply, false))
    return {Kind::denied, failed + remedy_of_denial(code)};
  return {Kind::refused, failed + "the store refused the request"};
}

S3Error too_long_error(const S3Path& path, const char* doing, std::size_t bytes) {
  return {S3Error::Kind::refused,
          path.text() + ": cannot " + doing + ": the store sent more than the " + std::to_string(bytes) +
              " bytes that were asked for: it, or a proxy before it, does not serve ranges"};
}

}  // namespace trainerd::io
