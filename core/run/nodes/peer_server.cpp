#include "core/run/nodes/peer_server.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <poll.h>

#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "core/run/log/log.h"
#include "core/run/nodes/copy_transfer.h"
#include "kernels/base/error.h"
#include "kernels/base/socket.h"

namespace trainerd::core::run {

PeerServer::PeerServer(const std::string& address, const parallel::JobToken& token, std::string what,
                       Serve serve)
    : what_(std::move(what)),
      serve_(std::move(serve)),
      server_(base::listen_at({address, 0}), token,
              [what = what_](const std::string& line) { log::warn("{}: {}", what, line); }),
      over_(::eventfd(0, EFD_CLOEXEC)) {
  if (!over_) throw base::device_error("cannot make an eventfd: " + base::errno_text(errno));
  accepting_ = std::thread([this] { accept(); });
}

PeerServer::~PeerServer() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(over_.get(), &one, sizeof(one));
  accepting_.join();
  {
    const std::lock_guard lock(mutex_);
    for (const Visitor& visitor : visitors_)  // of one that is done the descriptor may be another's
      if (!visitor.done) ::shutdown(visitor.fd, SHUT_RDWR);
  }
  for (Visitor& visitor : visitors_) visitor.thread.join();
}

void PeerServer::accept() {
  for (;;) {
    pollfd fds[2] = {{server_.event_fd(), POLLIN, 0}, {over_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    while (auto joined = server_.take_joined()) {
      base::watch_peer(joined->socket.get(), kPeerSeconds);
      const std::lock_guard lock(mutex_);
      for (auto it = visitors_.begin(); it != visitors_.end();)
        if (it->done) it->thread.join(), it = visitors_.erase(it);
        else ++it;
      Visitor& visitor = visitors_.emplace_back();
      visitor.fd = joined->socket.get();
      try {
        visitor.thread =
            std::thread([this, &visitor, channel = Channel(std::move(joined->socket)),
                         text = joined->text]() mutable { visit(visitor, std::move(channel), text); });
      } catch (const std::system_error& error) {  // the connection is gone with what was to serve it
        visitors_.pop_back();
        log::warn("{}: a connection was dropped, no thread can be started: {}", what_, error.what());
      }
    }
  }
}

void PeerServer::visit(Visitor& visitor, Channel channel, const std::string& text) {
  try {
    serve_(channel, text);
  } catch (const std::exception& error) {
    log::warn("{}: {}", what_, error.what());
  }
  // Before the descriptor is closed, so that the destructor shuts down no other's.
  const std::lock_guard done(mutex_);
  visitor.done = true;
}

}  // namespace trainerd::core::run
