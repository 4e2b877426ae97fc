#include "io/console/screen.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <span>
#include <thread>

#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kQueueBytes = 256 << 10;
constexpr std::size_t kWriteBytes = 4096;  // PIPE_BUF: lines of several writers of one pipe are not mixed
constexpr int kDefaultWidth = 80;
constexpr auto kPatience = std::chrono::milliseconds(500);  // without progress, for `finish`
constexpr auto kLongestFinish = std::chrono::seconds(5);
constexpr const char* kClearLine = "\r\033[K";

/// Blocks all signals during its lifetime, for a new thread to inherit. Signals are left to other threads, a
/// closed pipe becomes a write error, and a background process may write to its terminal.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}  // within a UTF-8 character

/// Returns the indent of continuation lines: the column of the value in "  name   value", else 4 more than
/// the text.
std::size_t hanging_indent(const std::string& line, std::size_t width) {
  const std::size_t text = line.find_first_not_of(' ');
  const std::size_t gap = line.find("  ", text);
  const std::size_t value = gap == std::string::npos ? gap : line.find_first_not_of(' ', gap);
  return text > 0 && value < width / 2 ? value : text + 4;
}

/// Wraps a line at spaces to at most `width` columns. A longer word is not split.
std::string broken(const std::string& line, std::size_t width) {
  std::string out;
  std::size_t column = 0, start = 0, at = 0;  // column of the row; start of the text that is not in `out` yet
  std::size_t space = std::string::npos;      // latest one in this row
  const std::size_t text = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t indent = text == line.size() ? 0 : hanging_indent(line, width);
  for (; at < line.size(); ++at) {
    if (line[at] == '\033') {  // colour codes have no width
      at = std::min(line.find('m', at), line.size() - 1);
      continue;
    }
    if (is_continuation(line[at])) continue;
    if (line[at] == ' ' && column > (start == 0 ? text : indent)) space = at;
    if (++column <= width || space == std::string::npos) continue;
    out += line.substr(start, space - start) + "\n" + std::string(indent, ' ');
    start = space + 1;
    column =
        indent + static_cast<std::size_t>(std::count_if(line.begin() + static_cast<std::ptrdiff_t>(start),
                                                        line.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                                                        [](char c) { return !is_continuation(c); }));
    space = std::string::npos;
  }
  return out + line.substr(start);
}

/// Writes all bytes, however long the reader takes. Returns 0 or an errno value.
int write_patiently(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {  // another process made the descriptor non-blocking
      pollfd writable{fd, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

/// Returns true if no later write can succeed: a closed pipe, a lost terminal.
bool is_final(int error) { return error == EPIPE || error == EIO || error == EBADF || error == ENXIO; }

}  // namespace

struct Screen::State {
  base::UniqueFd own;
  int fd = -1;
  Style style = Style::plain;
  std::mutex mutex;
  std::condition_variable work, progress;
  std::deque<std::string> lines;
  std::size_t bytes = 0;                     // total size of `lines`
  std::string status;                        // as requested
  std::string shown;                         // as last written
  std::int64_t dropped = 0, unreported = 0;  // lines; `unreported`: since the last message about them
  std::int64_t writes = 0;
  int error = 0;  // of the latest write
  bool writing = false, gone = false, stop = false;

  bool has_work() const { return !lines.empty() || unreported > 0 || status != shown; }

  void push(const std::string& text) {
    if (gone) {
      ++dropped;
      return;
    }
    lines.push_back(text + "\n");
    bytes += lines.back().size();
    while (bytes > kQueueBytes && lines.size() > 1) {
      bytes -= lines.front().size();
      lines.pop_front();
      ++dropped, ++unreported;
    }
    work.notify_one();
  }

  /// Returns the next text to write and the number of queued lines in it.
  std::pair<std::string, std::int64_t> take() {
    std::string text = shown.empty() ? "" : kClearLine;
    if (unreported > 0)
      text += fmt::format("({} lines of output were dropped here: nothing read them)\n",
                          std::exchange(unreported, 0));
    std::int64_t count = 0;
    while (!lines.empty() && (count == 0 || text.size() + lines.front().size() <= kWriteBytes)) {
      text += lines.front();
      bytes -= lines.front().size();
      lines.pop_front();
      ++count;
    }
    shown = status;
    return {text + shown, count};
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [this] { return stop || has_work(); });
      if (!has_work()) return;
      const auto [text, count] = take();
      writing = true;
      lock.unlock();
      const int result = write_patiently(fd, std::as_bytes(std::span(text)));
      lock.lock();
      error = result;
      writing = false;
      ++writes;
      if (error != 0) dropped += count;
      if (is_final(error)) {
        gone = true;
        dropped += static_cast<std::int64_t>(lines.size());
        lines.clear();
        bytes = 0, unreported = 0;
        shown = status = {};
      }
      progress.notify_all();
    }
  }
};

Screen::Screen(int fd, Style style) : state_(std::make_shared<State>()) {
  state_->style = style;
  // If no descriptor is free, uses `fd` itself, which works as long as the process keeps it open.
  state_->own = base::UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  state_->fd = state_->own ? state_->own.get() : fd;
  const SignalsBlocked blocked;
  std::thread([state = state_] { state->run(); }).detach();
}

Screen::~Screen() {
  finish();
  const std::lock_guard lock(state_->mutex);
  state_->stop = true;
  state_->work.notify_one();
}

Screen::Style Screen::style() const { return state_->style; }

void Screen::line(const std::string& text) {
  if (state_->style == Style::terminal && text.find('\n') == std::string::npos) {
    const std::string rows = broken(text, static_cast<std::size_t>(width()));
    const std::lock_guard lock(state_->mutex);
    return state_->push(rows);
  }
  const std::lock_guard lock(state_->mutex);
  state_->push(text);
}

void Screen::status(const std::string& text) {
  if (state_->style == Style::plain) return;
  const std::lock_guard lock(state_->mutex);
  if (state_->gone) return;
  state_->status = text;
  state_->work.notify_one();
}

void Screen::settle_status() {
  const std::lock_guard lock(state_->mutex);
  if (state_->status.empty()) return;
  state_->push(std::exchange(state_->status, {}));
}

int Screen::width() const {
  winsize size{};
  return ::ioctl(state_->fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kDefaultWidth;
}

Screen::Lost Screen::lost() const {
  const std::lock_guard lock(state_->mutex);
  const State& s = *state_;
  return {s.dropped, s.error != 0 ? base::errno_text(s.error) : s.unreported > 0 ? "nothing reads it" : ""};
}

void Screen::finish() {
  settle_status();
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  const auto idle = [&s] { return !s.writing && !s.has_work(); };
  const auto end = Clock::now() + kLongestFinish;
  while (!idle()) {
    const std::int64_t before = s.writes;
    const auto until = std::min(end, Clock::now() + kPatience);
    if (s.progress.wait_until(lock, until, [&] { return idle() || s.writes != before; })) continue;
    // A busy machine may leave the writer without a core. Only a reader that does not read is given up on.
    pollfd writable{s.fd, POLLOUT, 0};
    if (Clock::now() >= end || ::poll(&writable, 1, 0) != 1) return;
  }
}

}  // namespace trainerd::io
