#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// Messages of text between agent and worker over a stream socket: four bytes of length, then the text. One
/// thread sends and one receives at a time.
class Channel {
 public:
  explicit Channel(base::UniqueFd socket) : socket_(std::move(socket)) {}
  /// Two connected ends.
  static std::pair<base::UniqueFd, base::UniqueFd> make_pair();

  /// Throws CommError when the peer is gone, and for a message over 64 MiB, of which nothing is sent.
  void send(std::string_view message);
  /// The next message, waiting for it; empty when the peer is gone.
  std::optional<std::string> receive();
  /// Whether `receive` would return at once: a message has begun to arrive, or the peer is gone.
  bool ready() const;
  int fd() const { return socket_.get(); }

 private:
  bool read_exactly(char* out, std::size_t bytes);
  base::UniqueFd socket_;
};

}  // namespace trainerd::core::run
