#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace trainerd::io {

/// The one writer of a terminal or of standard output. Text is queued and a thread of its own writes it: a
/// reader that stands still (Ctrl-S, a frozen ssh, a full pipe) holds that thread up and nothing else. Lines
/// beyond what the queue holds are dropped, oldest first, and counted; a line on the screen says how many.
/// The descriptor's flags, which other processes share, stay as they are. Every function may be called from
/// any thread, and none waits but `finish`.
class Screen {
 public:
  enum class Style : std::uint8_t { terminal, plain };
  /// `fd` is duplicated: it may be closed before this ends.
  Screen(int fd, Style style);
  /// Finishes. The thread ends when its reader lets it, or with the process.
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  Style style() const;
  /// A line of its own, above the status. A terminal gets it broken at spaces to its width.
  void line(const std::string& text);
  /// The last line of a terminal, redrawn in place; empty: none. Not shown in plain style.
  void status(const std::string& text);
  /// Leaves the status as it is now as a line.
  void settle_status();
  /// Columns; 80 where they are not known.
  int width() const;
  struct Lost {
    std::int64_t lines = 0;
    std::string reason;  ///< of what is lost now; empty: nothing is
  };
  Lost lost() const;
  /// Settles the status and waits until all is written, but not for a reader that takes nothing for half a
  /// second.
  void finish();

 private:
  struct State;  // the thread's too, which may outlive this
  std::shared_ptr<State> state_;
};

}  // namespace trainerd::io
