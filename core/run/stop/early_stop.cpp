#include "core/run/stop/early_stop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::core::run {

int read_signal(int signal_fd) {
  signalfd_siginfo info{};
  if (::read(signal_fd, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return 0;
  return static_cast<int>(info.ssi_signo);
}

EarlyStop::EarlyStop(int signal_fd, LeaveProcess leave) : over_(::eventfd(0, EFD_CLOEXEC)) {
  if (!over_) throw base::device_error("cannot listen for signals: " + base::errno_text(errno));
  thread_ = std::thread([signal_fd, over = over_.get(), leave = std::move(leave)] {
    for (;;) {
      std::array<pollfd, 2> fds{pollfd{over, POLLIN, 0}, pollfd{signal_fd, POLLIN, 0}};
      if (::poll(fds.data(), fds.size(), -1) < 0) continue;
      if (fds[0].revents != 0) return;
      if (const int signal = read_signal(signal_fd); signal != 0) leave(stop_request(signal));
    }
  });
}

EarlyStop::~EarlyStop() {
  const std::uint64_t one = 1;
  while (::write(over_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {}
  thread_.join();
}

}  // namespace trainerd::core::run
