#include "io/otlp/http_post.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

// Longer answers do not come from a receiver.
constexpr std::size_t kMaxReply = 1 << 20;

/// Returns true if the socket is ready for `events`, false at the deadline.
bool wait_for(int fd, short events, double deadline) {
  for (;;) {
    pollfd p{fd, events, 0};
    const double left = deadline - base::monotonic_seconds();
    const int n = left <= 0 ? 0 : ::poll(&p, 1, static_cast<int>(1e3 * left) + 1);
    if (n < 0 && errno == EINTR) continue;
    return n > 0;
  }
}

/// Returns the error; empty if everything was sent.
std::string send_all(int fd, std::string_view text, double deadline) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) text.remove_prefix(static_cast<std::size_t>(n));
    else if (errno != EINTR && errno != EAGAIN) return base::errno_text(errno);
    else if (!wait_for(fd, POLLOUT, deadline)) return "it does not read";
  }
  return "";
}

/// Returns a header's value; empty if it is missing.
std::string header(std::string_view head, std::string_view name) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  for (std::size_t at = 0; (at = head.find("\r\n", at)) != std::string_view::npos;) {
    at += 2;
    const std::string_view line = head.substr(at, head.find("\r\n", at) - at);
    if (line.size() <= name.size() || line[name.size()] != ':' ||
        !std::equal(name.begin(), name.end(), line.begin(), same))
      continue;
    const std::size_t value = line.find_first_not_of(" \t", name.size() + 1);
    return value == std::string_view::npos ? "" : std::string(line.substr(value));
  }
  return "";
}

struct ReplyHead {
  PostReply reply;
  std::size_t head = 0;                   ///< bytes before the body
  std::optional<std::size_t> body_bytes;  ///< none: until the connection ends
  bool chunked = false;
};

/// Returns none if the head is incomplete or invalid.
std::optional<ReplyHead> parse_head(std::string_view text) {
  const std::size_t end = text.find("\r\n\r\n");
  if (end == std::string_view::npos || !text.starts_with("HTTP/1.")) return std::nullopt;
  const std::string_view head = text.substr(0, end + 2);
  ReplyHead parsed{.reply = {}, .head = end + 4, .body_bytes = {}};
  const std::size_t space = head.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::from_chars(head.data() + space + 1, head.data() + head.size(), parsed.reply.status);
  if (const std::string length = header(head, "Content-Length"); !length.empty()) {
    std::size_t bytes = 0;
    std::from_chars(length.data(), length.data() + length.size(), bytes);
    parsed.body_bytes = bytes;
  }
  parsed.chunked = !header(head, "Transfer-Encoding").empty();
  return parsed;
}

}  // namespace

std::optional<HttpUrl> parse_http_url(const std::string& text) {
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) return std::nullopt;
  const std::size_t slash = text.find('/', kScheme.size());
  const auto endpoint = base::parse_endpoint(text.substr(kScheme.size(), slash - kScheme.size()));
  if (!endpoint) return std::nullopt;
  HttpUrl url{*endpoint, slash == std::string::npos ? "" : text.substr(slash)};
  const auto allowed = [](char c) { return c > ' ' && c < 0x7f && c != '?' && c != '#'; };
  if (!std::all_of(url.path.begin(), url.path.end(), allowed)) return std::nullopt;
  return url;
}

std::optional<PostReply> http_post(const HttpUrl& url, std::string_view content_type, std::string_view body,
                                   double seconds, std::string& why) {
  base::UniqueFd fd;
  try {
    fd = base::try_connect(url.to, seconds, why);
  } catch (const base::CommError& error) {
    why = error.what();
  }
  if (!fd) return std::nullopt;
  const double deadline = base::monotonic_seconds() + seconds;
  const std::string head =
      "POST " + (url.path.empty() ? "/" : url.path) + " HTTP/1.1\r\nHost: " + url.to.text() +
      "\r\nUser-Agent: trainerd\r\nContent-Type: " + std::string(content_type) +
      "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n";
  for (const std::string_view part : {std::string_view(head), body}) {
    why = send_all(fd.get(), part, deadline);
    // A receiver may refuse a request before it has read all of it, so its reply is read anyway.
    if (!why.empty()) break;
  }
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const auto parsed = parse_head(text);
    if (parsed && parsed->chunked) return parsed->reply;
    if (parsed && parsed->body_bytes && text.size() - parsed->head >= *parsed->body_bytes) {
      PostReply reply = parsed->reply;
      reply.body = text.substr(parsed->head, *parsed->body_bytes);
      return reply;
    }
    if (text.size() > kMaxReply) {
      why = "its reply is too long";
      return std::nullopt;
    }
    const ssize_t n = ::recv(fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(n));
    } else if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
      if (wait_for(fd.get(), POLLIN, deadline)) continue;
      if (why.empty()) why = "no reply in time";
      return std::nullopt;
    } else if (n == 0 && parsed && !parsed->body_bytes) {
      PostReply reply = parsed->reply;
      reply.body = text.substr(parsed->head);
      return reply;
    } else {
      if (why.empty())
        why = n < 0 ? base::errno_text(errno) : "it ended the connection without an HTTP reply";
      return std::nullopt;
    }
  }
}

}  // namespace trainerd::io
