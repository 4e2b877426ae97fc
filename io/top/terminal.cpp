#include "io/top/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

// Alternate screen, no cursor, no wrapping of lines longer than the terminal.
constexpr const char* kEnter = "\033[?1049h\033[?25l\033[?7l\033[2J";
constexpr const char* kLeave = "\033[0m\033[?7h\033[?25h\033[?1049l";
constexpr std::array kCrashes{SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

// State that the crash handler restores.
volatile sig_atomic_t crash_fd = -1;
termios crash_termios;

// Also writes to a terminal that was stopped (Ctrl-S) or whose reader still has a frame to read. Safe in a
// signal handler.
void write_at_once(int fd, const char* text) {
  std::size_t at = 0;
  const std::size_t size = std::strlen(text);
  for (int tries = 0; at < size && tries < 20; ++tries) {
    const ssize_t n = ::write(fd, text + at, size - at);
    if (n >= 0) {
      at += static_cast<std::size_t>(n);
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) return;
    ::tcflow(fd, TCOON);
    pollfd writable{fd, POLLOUT, 0};
    ::poll(&writable, 1, 50);
  }
}

extern "C" void trainerd_put_terminal_back(int signal) {
  if (crash_fd >= 0) {
    write_at_once(crash_fd, kLeave);
    ::tcsetattr(crash_fd, TCSANOW, &crash_termios);
  }
  ::raise(signal);  // SA_RESETHAND has removed the handler
}

void handle_crashes(bool on) {
  struct sigaction action {};
  action.sa_handler = on ? trainerd_put_terminal_back : SIG_DFL;
  action.sa_flags = on ? static_cast<int>(SA_RESETHAND | SA_NODEFER) : 0;
  for (const int signal : kCrashes) ::sigaction(signal, &action, nullptr);
}

}  // namespace

LiveTerminal::LiveTerminal(int fd) {
  // Opens the terminal again to get its own O_NONBLOCK flag. Another user's terminal (after su) cannot be
  // opened; then writes wait for a reader that stands still.
  fd_ = base::UniqueFd(
      ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
  if (!fd_) fd_ = base::UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!fd_ || ::tcgetattr(fd_.get(), &before_) != 0)
    throw base::device_error("the terminal cannot be used: " + base::errno_text(errno));
}

LiveTerminal::~LiveTerminal() { leave(); }

LiveTerminal::Size LiveTerminal::size() const {
  winsize found{};
  if (::ioctl(fd_.get(), TIOCGWINSZ, &found) != 0 || found.ws_col == 0 || found.ws_row == 0) return {};
  return {.columns = found.ws_col, .rows = found.ws_row};
}

void LiveTerminal::enter() {
  if (entered_) return;
  entered_ = true;
  ::tcgetattr(fd_.get(), &before_);  // current settings, which a shell may have changed meanwhile
  crash_termios = before_;
  crash_fd = fd_.get();
  handle_crashes(true);
  termios keys = before_;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // keys still send signals
  keys.c_cc[VMIN] = 1;
  keys.c_cc[VTIME] = 0;
  ::tcsetattr(fd_.get(), TCSANOW, &keys);
  waiting_ = kEnter;
}

void LiveTerminal::leave() {
  if (!entered_) return;
  entered_ = false;
  waiting_.clear();
  write_at_once(fd_.get(), kLeave);
  ::tcsetattr(fd_.get(), TCSANOW, &before_);
  handle_crashes(false);
  crash_fd = -1;
}

void LiveTerminal::draw(const std::vector<std::string>& lines) {
  waiting_ += "\033[H";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) waiting_ += "\r\n";
    waiting_ += lines[i] + "\033[K";
  }
  waiting_ += "\033[J";
}

bool LiveTerminal::flush() {
  while (!waiting_.empty()) {
    const ssize_t n = ::write(fd_.get(), waiting_.data(), waiting_.size());
    if (n >= 0) waiting_.erase(0, static_cast<std::size_t>(n));
    else if (errno == EAGAIN) return false;
    else if (errno != EINTR) waiting_.clear();  // poll reports the closed terminal
  }
  return true;
}

}  // namespace trainerd::io
