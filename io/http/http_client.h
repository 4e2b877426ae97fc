#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trainerd::io {

struct HttpRequest {
  std::string url;                        ///< http:// or https://
  std::optional<std::string> body = {};   ///< is posted; none: GET
  std::vector<std::string> headers = {};  ///< "Content-Type: application/json"
  double seconds = 10;                    ///< for all of it, the lookup of the host's name included
};
struct HttpResponse {
  int status = 0;
  std::string body;
};

/// Requests by libcurl, opened at run time, with its certificates and its proxies (`https_proxy`,
/// `no_proxy`). Redirects are not followed: headers may hold credentials. Used by one thread, `abort` aside.
class HttpClient {
 public:
  /// Throws SpecError without libcurl.so.4.
  HttpClient();
  ~HttpClient();

  /// None, and `why`, without a whole reply of at most 16 MiB in time.
  std::optional<HttpResponse> send(const HttpRequest& request, std::string& why);
  /// From any thread: what is under way ends within about a second, and nothing more is sent.
  void abort();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A part of a URL, in which all but letters, digits and "-._~" is written as %XX.
std::string url_encoded(const std::string& text);

}  // namespace trainerd::io
