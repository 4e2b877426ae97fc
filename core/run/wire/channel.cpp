#include "core/run/wire/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

// No valid message comes near this size.
constexpr std::uint32_t kLargestMessage = 64u << 20;

}  // namespace

std::pair<base::UniqueFd, base::UniqueFd> Channel::make_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw base::device_error("cannot make a socket pair: " + base::errno_text(errno));
  return {base::UniqueFd(ends[0]), base::UniqueFd(ends[1])};
}

void Channel::send(std::string_view message) {
  if (message.size() > kLargestMessage)
    throw base::capacity_error("a message of " + std::to_string(message.size() >> 20) +
                               " MiB is longer than the control channel takes (" +
                               std::to_string(kLargestMessage >> 20) + " MiB)");
  const auto length = static_cast<std::uint32_t>(message.size());
  std::string frame(sizeof(length), '\0');
  std::memcpy(frame.data(), &length, sizeof(length));
  frame += message;
  for (std::size_t done = 0; done < frame.size();) {
    const ssize_t n = ::send(socket_.get(), frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw base::comm_error("the peer on the control channel is gone: " + base::errno_text(errno));
    done += static_cast<std::size_t>(n);
  }
}

bool Channel::read_exactly(char* out, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = ::recv(socket_.get(), out + done, bytes - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

std::optional<std::string> Channel::receive() {
  std::uint32_t length = 0;
  if (!read_exactly(reinterpret_cast<char*>(&length), sizeof(length)) || length > kLargestMessage)
    return std::nullopt;
  std::string message(length, '\0');
  if (!read_exactly(message.data(), length)) return std::nullopt;
  return message;
}

bool Channel::ready() const {
  pollfd p{socket_.get(), POLLIN, 0};
  return ::poll(&p, 1, 0) > 0;
}

}  // namespace trainerd::core::run
