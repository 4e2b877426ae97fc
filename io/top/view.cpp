#include "io/top/view.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "io/top/frame.h"
#include "io/top/terminal.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

constexpr double kViewSeconds = 1;

/// Receives signals through a descriptor during its lifetime.
class ViewSignals {
 public:
  ViewSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal :
         {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2})
      sigaddset(&set, signal);
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = base::UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) throw base::device_error("cannot listen for signals: " + base::errno_text(errno));
  }
  ~ViewSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  ViewSignals(const ViewSignals&) = delete;
  ViewSignals& operator=(const ViewSignals&) = delete;

  int fd() const { return fd_.get(); }
  /// Returns the next signal; 0 if there is none.
  int take() const {
    signalfd_siginfo info{};
    return ::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))
               ? static_cast<int>(info.ssi_signo)
               : 0;
  }

 private:
  sigset_t before_{};
  base::UniqueFd fd_;
};

class View {
 public:
  View(StatusSource& source, int terminal_fd, Line::Colors colors)
      : source_(source), colors_(colors), reading_(source.read()), terminal_(terminal_fd) {}

  int run() {
    terminal_.enter();
    while (!ended_) {
      draw();
      wait(base::monotonic_seconds() + kViewSeconds);
      if (!ended_ && !redraw_) reading_ = source_.read();
      redraw_ = false;
    }
    terminal_.leave();
    return signal_;
  }

 private:
  void draw() {
    const LiveTerminal::Size size = terminal_.size();
    terminal_.draw(top_frame(reading_.status, {.columns = size.columns,
                                               .rows = size.rows,
                                               .colors = colors_,
                                               .warning = reading_.warning,
                                               .no_ranks = reading_.no_ranks}));
  }

  void wait(double until) {
    while (!ended_ && !redraw_) {
      const bool all_written = terminal_.flush();
      const double left = until - base::monotonic_seconds();
      if (left <= 0 && all_written) return;
      const auto events = static_cast<short>(all_written ? POLLIN : POLLIN | POLLOUT);
      std::array<pollfd, 2> fds{pollfd{signals_.fd(), POLLIN, 0}, pollfd{terminal_.fd(), events, 0}};
      ::poll(fds.data(), fds.size(), std::max(0, static_cast<int>(1000 * left)) + 1);
      if (fds[0].revents != 0) on_signal(signals_.take());
      if ((fds[1].revents & POLLIN) != 0) on_keys();
      if ((fds[1].revents & (POLLHUP | POLLERR)) != 0) end(SIGHUP);
    }
  }

  void end(int signal) {
    ended_ = true;
    signal_ = signal;
  }

  void on_signal(int signal) {
    switch (signal) {
      case 0:
      case SIGPIPE: return;
      case SIGWINCH: redraw_ = true; return;
      case SIGTSTP:
        terminal_.leave();
        ::kill(::getpid(), SIGSTOP);
        terminal_.enter();  // continued by SIGCONT
        redraw_ = true;
        return;
      default: end(signal);
    }
  }

  void on_keys() {
    std::array<char, 64> keys{};
    const ssize_t n = ::read(terminal_.fd(), keys.data(), keys.size());
    if (n == 0) return end(SIGHUP);
    for (ssize_t i = 0; i < n; ++i)
      if (keys[static_cast<std::size_t>(i)] == 'q' || keys[static_cast<std::size_t>(i)] == 'Q') end(0);
  }

  StatusSource& source_;
  Line::Colors colors_;
  StatusReading reading_;  // read first, so that an error is reported on the unchanged terminal
  ViewSignals signals_;
  LiveTerminal terminal_;
  bool ended_ = false, redraw_ = false;
  int signal_ = 0;
};

}  // namespace

int show_live(StatusSource& source, int terminal_fd, Line::Colors colors) {
  return View(source, terminal_fd, colors).run();
}

}  // namespace trainerd::io
