#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trainerd::io {

inline constexpr std::size_t kMaxHttpReply = std::size_t{16} << 20;

struct HttpRequest {
  std::string url;                         ///< http:// or https://
  std::optional<std::string> body = {};    ///< is posted; none: GET
  std::vector<std::string> headers = {};   ///< "Content-Type: application/json"
  double seconds = 10;                     ///< for all of it, the lookup of the host's name included
  std::string method = {};                 ///< "HEAD", "DELETE", "PUT"; empty: GET, or POST with a body
  std::span<const std::byte> upload = {};  ///< the body of a PUT, which the caller keeps
  double stall_seconds = 0;                ///< it fails when no byte comes for so long; 0: never
  std::size_t max_reply = kMaxHttpReply;   ///< bytes of the reply's body
};
struct HttpResponse {
  int status = 0;
  std::string body;
  std::map<std::string, std::string> headers = {};  ///< names in lower case
};

/// Requests by libcurl, opened at run time, with its certificates and its proxies (`https_proxy`,
/// `no_proxy`). Redirects are not followed: headers may hold credentials. Used by one thread, `abort` aside.
class HttpClient {
 public:
  /// Throws SpecError without libcurl.so.4.
  HttpClient();
  ~HttpClient();

  /// None, and `why`, without a whole reply of at most `max_reply` bytes in time.
  std::optional<HttpResponse> send(const HttpRequest& request, std::string& why);
  /// Whether the latest reply had more than `max_reply` bytes.
  bool reply_was_too_long() const;
  /// From any thread: what is under way ends within about a second, and nothing more is sent.
  void abort();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A part of a URL, in which all but letters, digits and "-._~" is written as %XX.
std::string url_encoded(const std::string& text);

}  // namespace trainerd::io
