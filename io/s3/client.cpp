#include "io/s3/client.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <mutex>
#include <random>
#include <string_view>
#include <utility>

#include "io/http/http_client.h"
#include "io/s3/address.h"
#include "io/s3/credentials.h"
#include "io/s3/errors.h"
#include "io/s3/sign.h"
#include "io/s3/xml.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr double kFirstWait = 0.1, kLongestWait = 20;  // seconds
constexpr int kMaxRenewals = 5;                        // per request
constexpr int kWrongReplies = 2;                       // per request, before it fails
constexpr std::size_t kMinReply = std::size_t{1} << 20;
constexpr std::int64_t kMaxParts = 10'000;
constexpr std::size_t kListReply = std::size_t{16} << 20;  // a page of 1,000 keys has at most a few MiB

struct Request {
  const char* doing = "";  ///< for error messages: "read"
  std::string method = {};
  S3Path path;
  std::vector<std::pair<std::string, std::string>> query = {};
  std::map<std::string, std::string> headers = {};
  std::span<const std::byte> payload = {};
  std::size_t max_reply = kMinReply;
};

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  tm parts{};
  ::gmtime_r(&now, &parts);
  std::string text(16, '\0');
  std::strftime(text.data(), text.size() + 1, "%Y%m%dT%H%M%SZ", &parts);
  return text;
}

HttpRequest signed_request(const Request& request, const AwsCredentials& credentials,
                           const S3Settings& settings) {
  const Address address = address_of(settings, request.path.bucket);
  RequestToSign to_sign{.method = request.method,
                        .path = address.path + "/" + encoded_path(request.path.key),
                        .query = request.query,
                        .headers = request.headers,
                        .payload_hash = sha256_hex(request.payload),
                        .region = settings.region};
  to_sign.headers["host"] = address.host;
  to_sign.headers["x-amz-date"] = time_now();
  to_sign.headers["x-amz-content-sha256"] = to_sign.payload_hash;
  if (!credentials.session_token.empty()) to_sign.headers["x-amz-security-token"] = credentials.session_token;
  HttpRequest http{.url = address.scheme + address.host + to_sign.path, .seconds = settings.request_seconds};
  if (!request.query.empty()) http.url += "?" + canonical_query(request.query);
  for (const auto& [name, value] : to_sign.headers)
    if (name != "host") http.headers.push_back(name + ": " + value);
  http.headers.push_back("Authorization: " +
                         authorization(to_sign, {credentials.access_key, credentials.secret_key}));
  http.headers.emplace_back("Content-Type:");  // removes libcurl's default
  http.method = request.method == "GET" ? "" : request.method;
  http.upload = request.payload;
  if (request.method == "POST")
    http.body.emplace(reinterpret_cast<const char*>(request.payload.data()), request.payload.size());
  http.stall_seconds = settings.stall_seconds;
  http.max_reply = request.max_reply;
  return http;
}

std::int64_t whole_number(const std::string& text) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

std::string header_of(const HttpResponse& reply, const char* name) {
  const auto found = reply.headers.find(name);
  return found == reply.headers.end() ? "" : found->second;
}

std::int64_t number_in(std::string_view entry, const char* name) {
  const auto text = xml_text(entry, name);
  return text ? whole_number(*text) : -1;
}

// Returns the marker of the next page of a listing; empty after the last page.
std::string next_of(const std::string& page, const char* name) {
  const bool more = xml_text(page, "IsTruncated").value_or("false") == "true";
  return more ? xml_text(page, name).value_or("") : "";
}

[[noreturn]] void throw_entry(const S3Path& path) {
  throw S3Error(S3Error::Kind::refused,
                path.text() + ": cannot list: the reply has an entry without key or size");
}
[[noreturn]] void throw_same_page(const S3Path& path) {
  throw S3Error(S3Error::Kind::refused, path.text() + ": cannot list: the store gives the same page again");
}

}  // namespace

bool is_s3(const std::string& path) { return path.starts_with("s3://"); }

S3Path parse_s3(const std::string& uri) {
  constexpr std::size_t kScheme = 5;
  const std::size_t slash = std::min(uri.find('/', kScheme), uri.size());
  S3Path path{is_s3(uri) ? uri.substr(kScheme, slash - kScheme) : "",
              uri.substr(std::min(slash + 1, uri.size()))};
  const bool known = std::all_of(path.bucket.begin(), path.bucket.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  });
  if (path.bucket.empty() || !known)
    throw base::spec_error("'" + uri + "': expected s3://bucket/key, with a bucket's name");
  return path;
}

struct S3Client::State {
  explicit State(S3Settings of) : settings(std::move(of)), credentials(settings.credentials) {}

  S3Settings settings;
  Credentials credentials;
  std::atomic<std::int64_t> requests = 0, retries = 0, bytes_read = 0;
  std::atomic<bool> succeeded = false, stopped = false;
  std::mutex mutex;
  std::condition_variable stop_asked;
  std::vector<std::unique_ptr<HttpClient>> connections;  ///< all connections
  std::vector<HttpClient*> idle;
  std::minstd_rand random{std::random_device{}()};

  HttpClient& lease();
  void give_back(HttpClient& connection);
  std::optional<HttpResponse> try_once(const Request& request, const HttpRequest& http, std::string& why);
  HttpResponse send(const Request& request);
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  void each_page(const S3Path& prefix, Pairs query, const Pairs& markers,
                 const std::function<void(const std::string& page)>& take);
  void pause(int failures, const std::string& retry_after);
  [[noreturn]] void throw_stopped(const S3Path& path) const {
    throw S3Error(S3Error::Kind::stopped, path.text() + ": the request was stopped");
  }
};

HttpClient& S3Client::State::lease() {
  const std::lock_guard lock(mutex);
  if (idle.empty()) {
    connections.push_back(std::make_unique<HttpClient>());
    return *connections.back();
  }
  HttpClient& connection = *idle.back();
  idle.pop_back();
  return connection;
}

void S3Client::State::give_back(HttpClient& connection) {
  const std::lock_guard lock(mutex);
  idle.push_back(&connection);
}

std::optional<HttpResponse> S3Client::State::try_once(const Request& request, const HttpRequest& http,
                                                      std::string& why) {
  HttpClient& connection = lease();
  if (stopped) connection.abort();  // this connection was made after the stop
  auto reply = connection.send(http, why);
  const bool too_long = connection.reply_was_too_long();
  give_back(connection);
  ++requests;
  if (too_long) throw too_long_error(request.path, request.doing, request.max_reply);
  return reply;
}

// "Exponential backoff and jitter": a random wait in [0, longest) keeps many ranks from retrying at once.
void S3Client::State::pause(int failures, const std::string& retry_after) {
  const double longest = std::min(kLongestWait, kFirstWait * std::exp2(std::min(failures, 20)));
  std::unique_lock lock(mutex);
  double seconds = std::uniform_real_distribution(0.0, longest)(random);
  if (const std::int64_t asked = whole_number(retry_after); asked > 0)
    seconds = std::min(kLongestWait, static_cast<double>(asked));
  stop_asked.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stopped.load(); });
}

HttpResponse S3Client::State::send(const Request& request) {
  std::optional<double> failing_since;
  int renewals = 0;
  for (int failures = 0;;) {
    if (stopped) throw_stopped(request.path);
    const AwsCredentials used = credentials.get();
    const double begun = base::monotonic_seconds();
    std::string why;
    const auto reply = try_once(request, signed_request(request, used, settings), why);
    if (stopped) throw_stopped(request.path);
    if (reply && reply->status >= 200 && reply->status < 300 && !is_worth_retry(*reply)) {
      succeeded = true;
      return *reply;
    }
    if (reply && renewals < kMaxRenewals && may_be_expired(*reply, request.method == "HEAD") &&
        credentials.renew(used)) {
      ++renewals;
      ++retries;
      continue;
    }
    if (reply && !is_worth_retry(*reply)) throw reply_error(request.path, request.doing, *reply, settings);
    if (!failing_since) failing_since = begun;
    const double failing = base::monotonic_seconds() - *failing_since;
    if (failing > (succeeded ? settings.give_up_seconds : settings.first_seconds))
      throw S3Error(S3Error::Kind::unavailable, request.path.text() + ": cannot " + request.doing +
                                                    ": tried " + std::to_string(failures + 1) + " times in " +
                                                    std::to_string(std::llround(failing)) +
                                                    " s, last: " + (reply ? status_text(*reply) : why) +
                                                    ": check the network, and AWS_ENDPOINT_URL");
    pause(failures++, reply ? header_of(*reply, "retry-after") : "");
    ++retries;
  }
}

// `markers`: pairs of a query parameter and the element that holds its value for the next page.
void S3Client::State::each_page(const S3Path& prefix, Pairs query, const Pairs& markers,
                                const std::function<void(const std::string& page)>& take) {
  query.emplace_back("encoding-type", "url");
  query.emplace_back("prefix", prefix.key);
  Pairs at;
  do {
    Request request{.doing = "list", .method = "GET", .path = {prefix.bucket, ""}, .query = query};
    request.query.insert(request.query.end(), at.begin(), at.end());
    request.max_reply = kListReply;
    const HttpResponse reply = send(request);
    take(reply.body);
    const Pairs last = std::exchange(at, {});
    for (const auto& [parameter, element] : markers)
      if (std::string next = next_of(reply.body, element.c_str()); !next.empty())
        at.emplace_back(parameter, parameter == "key-marker" ? url_decoded(next) : std::move(next));
    if (!at.empty() && at == last) throw_same_page(prefix);
  } while (!at.empty());
}

S3Client::S3Client(S3Settings settings) : state_(std::make_unique<State>(std::move(settings))) {}
S3Client::~S3Client() = default;

std::optional<S3Object> S3Client::head(const S3Path& path) {
  try {
    const HttpResponse reply = state_->send({.doing = "look at it", .method = "HEAD", .path = path});
    const std::int64_t bytes = whole_number(header_of(reply, "content-length"));
    if (bytes < 0)
      throw S3Error(S3Error::Kind::refused, path.text() + ": the store does not say how large it is");
    return S3Object{path.key, bytes, header_of(reply, "etag")};
  } catch (const S3Error& error) {
    if (error.kind == S3Error::Kind::absent) return std::nullopt;
    throw;
  }
}

void S3Client::get(const S3Path& path, const std::string& etag, std::int64_t offset,
                   std::span<std::byte> out) {
  if (out.empty()) return;
  const std::int64_t last = offset + static_cast<std::int64_t>(out.size()) - 1;
  Request request{.doing = "read", .method = "GET", .path = path};
  request.headers["range"] = "bytes=" + std::to_string(offset) + "-" + std::to_string(last);
  if (!etag.empty()) request.headers["if-match"] = etag;
  request.max_reply = std::max(out.size(), kMinReply);
  const std::string range = "bytes " + std::to_string(offset) + "-" + std::to_string(last) + "/";
  const auto is_right = [&](const HttpResponse& reply) {
    return reply.status == 206 && header_of(reply, "content-range").starts_with(range) &&
           reply.body.size() == out.size();
  };
  HttpResponse reply = state_->send(request);
  // A proxy may have cut the reply or answered instead of the store.
  for (int failures = 0; !is_right(reply) && failures < kWrongReplies; ++failures) {
    state_->pause(failures, "");
    ++state_->retries;
    reply = state_->send(request);
  }
  if (!is_right(reply))
    throw S3Error(
        S3Error::Kind::refused,
        path.text() + ": cannot read: bytes " + std::to_string(offset) + " to " + std::to_string(last) +
            " were asked for, and the store gave others " + std::to_string(kWrongReplies + 1) +
            " times (status " + std::to_string(reply.status) + ", " + std::to_string(reply.body.size()) +
            " bytes): it, or a proxy before it, does not serve ranges, or the object became shorter");
  std::memcpy(out.data(), reply.body.data(), out.size());
  state_->bytes_read += static_cast<std::int64_t>(out.size());
}

std::vector<S3Object> S3Client::list(const std::string& bucket, const std::string& prefix) {
  std::vector<S3Object> objects;
  const S3Path path{bucket, prefix};
  state_->each_page(path, {{"list-type", "2"}}, {{"continuation-token", "NextContinuationToken"}},
                    [&](const std::string& page) {
                      for (const std::string_view entry : xml_elements(page, "Contents")) {
                        const auto key = xml_text(entry, "Key");
                        const std::int64_t bytes = number_in(entry, "Size");
                        if (!key || bytes < 0) throw_entry(path);
                        objects.push_back({url_decoded(*key), bytes, xml_text(entry, "ETag").value_or("")});
                      }
                    });
  std::sort(objects.begin(), objects.end(),
            [](const S3Object& a, const S3Object& b) { return a.key < b.key; });
  return objects;
}

std::vector<std::string> S3Client::list_names(const std::string& bucket, const std::string& prefix) {
  std::vector<std::string> names;
  const S3Path path{bucket, prefix};
  const auto add = [&](std::string_view entry, const char* name) {
    const auto key = xml_text(entry, name);
    if (!key || !url_decoded(*key).starts_with(prefix)) throw_entry(path);
    std::string rest = url_decoded(*key).substr(prefix.size());
    if (rest.ends_with('/')) rest.pop_back();
    if (!rest.empty()) names.push_back(std::move(rest));
  };
  state_->each_page(path, {{"list-type", "2"}, {"delimiter", "/"}},
                    {{"continuation-token", "NextContinuationToken"}}, [&](const std::string& page) {
                      for (const auto entry : xml_elements(page, "Contents")) add(entry, "Key");
                      for (const auto entry : xml_elements(page, "CommonPrefixes")) add(entry, "Prefix");
                    });
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<S3Upload> S3Client::uploads(const std::string& bucket, const std::string& prefix) {
  std::vector<S3Upload> found;
  const S3Path path{bucket, prefix};
  state_->each_page(path, {{"uploads", ""}},
                    {{"key-marker", "NextKeyMarker"}, {"upload-id-marker", "NextUploadIdMarker"}},
                    [&](const std::string& page) {
                      for (const auto entry : xml_elements(page, "Upload")) {
                        const auto key = xml_text(entry, "Key"), id = xml_text(entry, "UploadId");
                        if (!key || !id) throw_entry(path);
                        found.push_back({url_decoded(*key), *id});
                      }
                    });
  return found;
}

std::map<int, S3Part> S3Client::parts(const S3Path& path, const std::string& upload) {
  std::map<int, S3Part> found;
  std::string after;
  do {
    Request request{.doing = "list", .method = "GET", .path = path, .query = {{"uploadId", upload}}};
    if (!after.empty()) request.query.emplace_back("part-number-marker", after);
    request.max_reply = kListReply;
    const HttpResponse reply = state_->send(request);
    for (const std::string_view entry : xml_elements(reply.body, "Part")) {
      const std::int64_t number = number_in(entry, "PartNumber"), bytes = number_in(entry, "Size");
      if (number < 1 || number > kMaxParts || bytes < 0) throw_entry(path);
      found[static_cast<int>(number)] = {bytes, xml_text(entry, "ETag").value_or("")};
    }
    const std::string last = std::exchange(after, next_of(reply.body, "NextPartNumberMarker"));
    if (!after.empty() && after == last) throw_same_page(path);
  } while (!after.empty());
  return found;
}

void S3Client::put(const S3Path& path, std::span<const std::byte> bytes) {
  state_->send({.doing = "write", .method = "PUT", .path = path, .payload = bytes});
}

void S3Client::remove(const S3Path& path) {
  try {
    state_->send({.doing = "remove", .method = "DELETE", .path = path});
  } catch (const S3Error& error) {
    if (error.kind != S3Error::Kind::absent) throw;
  }
}

std::string S3Client::begin_upload(const S3Path& path) {
  const HttpResponse reply =
      state_->send({.doing = "write", .method = "POST", .path = path, .query = {{"uploads", ""}}});
  const auto upload = xml_text(reply.body, "UploadId");
  if (!upload || upload->empty())
    throw S3Error(S3Error::Kind::refused, path.text() + ": cannot write: the store gives no upload's number");
  return *upload;
}

std::string S3Client::upload_part(const S3Path& path, const std::string& upload, int number,
                                  std::span<const std::byte> bytes) {
  const HttpResponse reply =
      state_->send({.doing = "write",
                    .method = "PUT",
                    .path = path,
                    .query = {{"partNumber", std::to_string(number)}, {"uploadId", upload}},
                    .payload = bytes});
  return header_of(reply, "etag");
}

void S3Client::complete_upload(const S3Path& path, const std::string& upload,
                               const std::vector<std::string>& etags) {
  std::string body = "<CompleteMultipartUpload>";
  for (std::size_t i = 0; i < etags.size(); ++i)
    body +=
        "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" + etags[i] + "</ETag></Part>";
  body += "</CompleteMultipartUpload>";
  const std::int64_t retries = state_->retries;
  try {
    const HttpResponse reply = state_->send({.doing = "write",
                                             .method = "POST",
                                             .path = path,
                                             .query = {{"uploadId", upload}},
                                             .payload = std::as_bytes(std::span(body))});
    // A store that fails after it began to answer reports it in a reply of status 200.
    if (reply.body.find("CompleteMultipartUploadResult") == std::string::npos)
      throw S3Error(
          S3Error::Kind::unavailable,
          path.text() + ": cannot write: the store did not complete the upload: " + status_text(reply));
  } catch (const S3Error& error) {
    // An attempt whose reply was lost may have completed the upload. The retry then finds no such upload.
    if (error.kind != S3Error::Kind::absent || state_->retries == retries || !head(path)) throw;
  }
}

void S3Client::abort_upload(const S3Path& path, const std::string& upload) {
  try {
    state_->send({.doing = "remove", .method = "DELETE", .path = path, .query = {{"uploadId", upload}}});
  } catch (const S3Error& error) {
    if (error.kind != S3Error::Kind::absent) throw;
  }
}

S3Counters S3Client::counters() const {
  return {.requests = state_->requests,
          .retries = state_->retries,
          .bytes_read = state_->bytes_read,
          .renewals = state_->credentials.renewals()};
}

void S3Client::stop() {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  s.stopped = true;
  s.credentials.abort();
  for (const auto& connection : s.connections) connection->abort();
  s.stop_asked.notify_all();
}

}  // namespace trainerd::io
