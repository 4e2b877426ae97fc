#pragma once

#include <termios.h>

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/base/fd.h"

namespace trainerd::io {

/// A terminal's other screen, for a picture that is drawn again and again. It is left as it was found: by the
/// destructor, and on a crash (SIGSEGV, SIGABRT, ...) by a handler. One at a time.
class LiveTerminal {
 public:
  /// `fd` is a terminal; its flags, which other processes share, stay as they are. Throws DeviceError.
  explicit LiveTerminal(int fd);
  ~LiveTerminal();
  LiveTerminal(const LiveTerminal&) = delete;
  LiveTerminal& operator=(const LiveTerminal&) = delete;

  /// To poll for keys, and for room to write.
  int fd() const { return fd_.get(); }
  struct Size {
    std::size_t columns = 80, rows = 24;
  };
  Size size() const;
  void enter();
  /// Puts everything back; `enter` may follow.
  void leave();
  /// What is drawn next; `flush` writes as much as the terminal takes.
  void draw(const std::vector<std::string>& lines);
  /// False: more is to be written when there is room. A terminal that is gone takes all.
  bool flush();

 private:
  base::UniqueFd fd_;
  termios before_{};
  bool entered_ = false;
  std::string waiting_;
};

}  // namespace trainerd::io
