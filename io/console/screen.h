#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace trainerd::io {

/// The only writer of a terminal or of standard output. Text is queued and written by a separate thread, so a
/// reader that stops reading (Ctrl-S, a frozen ssh, a full pipe) blocks only that thread. When the queue is
/// full, the oldest lines are dropped and counted, and a line on the screen reports their number. The
/// descriptor's flags are shared with other processes and are not changed. Thread-safe; only `finish` waits.
class Screen {
 public:
  enum class Style : std::uint8_t { terminal, plain };
  /// `fd` is duplicated, so the caller may close it earlier.
  Screen(int fd, Style style);
  /// Finishes. The thread ends when its reader lets it, or with the process.
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  Style style() const;
  /// Writes a line above the status. A terminal's lines are wrapped at spaces to its width.
  void line(const std::string& text);
  /// Sets the last line of a terminal, redrawn in place; empty: none. Not shown in plain style.
  void status(const std::string& text);
  /// Turns the current status into a normal line.
  void settle_status();
  /// Number of columns; 80 if not known.
  int width() const;
  struct Lost {
    std::int64_t lines = 0;
    std::string reason;  ///< why lines are being lost now; empty: none are
  };
  Lost lost() const;
  /// Settles the status and waits until all is written. Gives up when the reader takes nothing for half a
  /// second.
  void finish();

 private:
  struct State;  // shared with the thread, which may outlive this
  std::shared_ptr<State> state_;
};

}  // namespace trainerd::io
