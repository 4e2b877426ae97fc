#pragma once

#include <termios.h>

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/base/fd.h"

namespace trainerd::io {

/// A terminal's alternate screen, redrawn repeatedly. The destructor restores the terminal; on a crash
/// (SIGSEGV, SIGABRT, ...) a handler does. Only one may exist at a time.
class LiveTerminal {
 public:
  /// `fd` must be a terminal. Its flags are shared with other processes and are not changed. Throws
  /// DeviceError.
  explicit LiveTerminal(int fd);
  ~LiveTerminal();
  LiveTerminal(const LiveTerminal&) = delete;
  LiveTerminal& operator=(const LiveTerminal&) = delete;

  /// To poll for input, and for room to write.
  int fd() const { return fd_.get(); }
  struct Size {
    std::size_t columns = 80, rows = 24;
  };
  Size size() const;
  void enter();
  /// Restores the terminal; `enter` may follow.
  void leave();
  /// Queues the next picture; `flush` writes as much as the terminal accepts.
  void draw(const std::vector<std::string>& lines);
  /// Returns false if more is to be written when there is room. Output to a closed terminal is discarded.
  bool flush();

 private:
  base::UniqueFd fd_;
  termios before_{};
  bool entered_ = false;
  std::string waiting_;
};

}  // namespace trainerd::io
