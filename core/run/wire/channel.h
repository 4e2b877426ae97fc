#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// Text messages over a stream socket: four bytes of length, then the text. At most one thread may send and
/// one may receive at a time.
class Channel {
 public:
  explicit Channel(base::UniqueFd socket) : socket_(std::move(socket)) {}
  /// Makes two connected ends.
  static std::pair<base::UniqueFd, base::UniqueFd> make_pair();

  /// Throws CommError if the peer is gone, and CapacityError for a message over 64 MiB, of which nothing is
  /// sent.
  void send(std::string_view message);
  /// Waits for the next message; empty if the peer is gone.
  std::optional<std::string> receive();
  /// True if `receive` has something to read: a message has begun to arrive, or the peer is gone.
  bool ready() const;
  int fd() const { return socket_.get(); }

 private:
  bool read_exactly(char* out, std::size_t bytes);
  base::UniqueFd socket_;
};

}  // namespace trainerd::core::run
