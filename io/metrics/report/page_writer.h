#pragma once

#include <memory>
#include <string>

#include "io/records/records.h"

namespace trainerd::io {

/// Writes a page to a file, again and again, on a thread of its own: a disk that is slow or gone delays no
/// caller but the last page. A reader sees one whole page or another.
class PageWriter {
 public:
  /// `name` is that of its record.
  explicit PageWriter(std::string path, std::string name = "report.html");
  /// Waits for nothing: the thread ends when it has written what it was given, or with the process.
  ~PageWriter();
  PageWriter(const PageWriter&) = delete;
  PageWriter& operator=(const PageWriter&) = delete;

  /// In place of one that is still to be written.
  void write(std::string page);
  /// The same, and waits until it is there, trying again for up to `seconds`. Throws SpecError naming the
  /// file.
  void write_last(std::string page, double seconds);
  OutletRecord record() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< the thread's too
};

}  // namespace trainerd::io
