#include "io/http/http_client.h"

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cmath>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

struct Curl {
  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_easy_init) init = nullptr;
  decltype(&::curl_easy_reset) reset = nullptr;
  decltype(&::curl_easy_setopt) set = nullptr;
  decltype(&::curl_easy_perform) perform = nullptr;
  decltype(&::curl_easy_getinfo) get = nullptr;
  decltype(&::curl_easy_strerror) error_text = nullptr;
  decltype(&::curl_easy_cleanup) cleanup = nullptr;
  decltype(&::curl_slist_append) append = nullptr;
  decltype(&::curl_slist_free_all) free_all = nullptr;

  // Loads the host's libcurl, so that it uses the host's certificates. Never closed, because it may have
  // threads.
  Curl() {
    constexpr const char* kLibrary = "libcurl.so.4";
    void* handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr)
      throw base::spec_error(std::string("cannot send anything by HTTP: ") + ::dlerror() +
                             ": install libcurl (Debian's package libcurl4)");
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
      if (function == nullptr)
        throw base::spec_error(std::string("cannot send anything by HTTP: ") + kLibrary + " has no " +
                               symbol);
    };
    find(global_init, "curl_global_init");
    find(init, "curl_easy_init");
    find(reset, "curl_easy_reset");
    find(set, "curl_easy_setopt");
    find(perform, "curl_easy_perform");
    find(get, "curl_easy_getinfo");
    find(error_text, "curl_easy_strerror");
    find(cleanup, "curl_easy_cleanup");
    find(append, "curl_slist_append");
    find(free_all, "curl_slist_free_all");
    global_init(CURL_GLOBAL_DEFAULT);
  }
};

const Curl& curl() {
  static const Curl library;
  return library;
}

struct Reply {
  std::size_t limit;
  HttpResponse response;
  bool too_long = false;
};

std::size_t take(char* bytes, std::size_t size, std::size_t count, void* to) {
  Reply& reply = *static_cast<Reply*>(to);
  reply.too_long = reply.response.body.size() + size * count > reply.limit;
  if (reply.too_long) return 0;  // aborts the transfer with an error
  reply.response.body.append(bytes, size * count);
  return size * count;
}

std::size_t take_header(char* bytes, std::size_t size, std::size_t count, void* to) {
  std::map<std::string, std::string>& headers = static_cast<Reply*>(to)->response.headers;
  const std::string_view line(bytes, size * count);
  if (line.starts_with("HTTP/")) headers.clear();  // drops headers of a proxy's reply or of "100 Continue"
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return line.size();
  std::string name(line.substr(0, colon)), value(line.substr(colon + 1));
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  const std::size_t first = value.find_first_not_of(" \t"), last = value.find_last_not_of(" \t\r\n");
  headers[name] = first == std::string::npos || last < first ? "" : value.substr(first, last - first + 1);
  return line.size();
}

int is_aborted(void* flag, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<std::atomic<bool>*>(flag)->load() ? 1 : 0;
}

}  // namespace

struct HttpClient::State {
  CURL* handle = nullptr;
  std::atomic<bool> aborted = false;
  bool too_long = false;  // of the latest reply
};

HttpClient::HttpClient() : state_(std::make_unique<State>()) {
  state_->handle = curl().init();
  if (state_->handle == nullptr)
    throw base::spec_error("cannot send anything by HTTP: libcurl does not start");
}

HttpClient::~HttpClient() { curl().cleanup(state_->handle); }

void HttpClient::abort() { state_->aborted = true; }

bool HttpClient::reply_was_too_long() const { return state_->too_long; }

std::optional<HttpResponse> HttpClient::send(const HttpRequest& request, std::string& why) {
  const Curl& c = curl();
  CURL* const handle = state_->handle;
  Reply reply{.limit = request.max_reply, .response = {}};
  std::array<char, CURL_ERROR_SIZE> error{};
  curl_slist* headers = c.append(nullptr, "Expect:");  // sends the body at once
  for (const std::string& header : request.headers) headers = c.append(headers, header.c_str());
  const long milliseconds = static_cast<long>(1e3 * request.seconds) + 1;
  c.reset(handle);  // keeps connections open
  c.set(handle, CURLOPT_URL, request.url.c_str());
  c.set(handle, CURLOPT_HTTPHEADER, headers);
  c.set(handle, CURLOPT_NOSIGNAL, 1L);
  c.set(handle, CURLOPT_TIMEOUT_MS, milliseconds);
  c.set(handle, CURLOPT_CONNECTTIMEOUT_MS, milliseconds);
  c.set(handle, CURLOPT_USERAGENT, "trainerd");
  c.set(handle, CURLOPT_ERRORBUFFER, error.data());
  c.set(handle, CURLOPT_WRITEFUNCTION, take);
  c.set(handle, CURLOPT_WRITEDATA, &reply);
  c.set(handle, CURLOPT_HEADERFUNCTION, take_header);
  c.set(handle, CURLOPT_HEADERDATA, &reply);
  c.set(handle, CURLOPT_PATH_AS_IS, 1L);  // the signature covers the path as it is
  c.set(handle, CURLOPT_NOPROGRESS, 0L);
  c.set(handle, CURLOPT_XFERINFOFUNCTION, is_aborted);
  c.set(handle, CURLOPT_XFERINFODATA, &state_->aborted);
  if (request.body) {
    c.set(handle, CURLOPT_POST, 1L);
    c.set(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body->size()));
    c.set(handle, CURLOPT_POSTFIELDS, request.body->data());
  } else if (request.method == "PUT") {
    c.set(handle, CURLOPT_POST, 1L);
    c.set(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.upload.size()));
    c.set(handle, CURLOPT_POSTFIELDS,
          request.upload.empty() ? "" : reinterpret_cast<const char*>(request.upload.data()));
  }
  if (request.method == "HEAD") c.set(handle, CURLOPT_NOBODY, 1L);
  else if (!request.method.empty()) c.set(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  if (request.stall_seconds > 0) {
    c.set(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    c.set(handle, CURLOPT_LOW_SPEED_TIME, static_cast<long>(std::ceil(request.stall_seconds)));
  }
  const CURLcode code = state_->aborted ? CURLE_ABORTED_BY_CALLBACK : c.perform(handle);
  long status = 0;
  if (code == CURLE_OK) c.get(handle, CURLINFO_RESPONSE_CODE, &status);
  c.free_all(headers);
  state_->too_long = reply.too_long;
  if (code != CURLE_OK) {
    why = error[0] != 0 ? error.data() : c.error_text(code);
    return std::nullopt;
  }
  reply.response.status = static_cast<int>(status);
  return std::move(reply.response);
}

std::string url_encoded(const std::string& text) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) encoded += c;
    else (encoded += '%') += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return encoded;
}

}  // namespace trainerd::io
