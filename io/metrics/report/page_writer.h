#pragma once

#include <memory>
#include <string>

#include "io/records/records.h"

namespace trainerd::io {

/// Writes a page to a file repeatedly on its own thread. A slow or missing disk delays no caller except
/// `write_last`. Readers always see a complete page.
class PageWriter {
 public:
  /// `name` names the record.
  explicit PageWriter(std::string path, std::string name = "report.html");
  /// Does not wait. The thread ends when it has written what it was given, or with the process.
  ~PageWriter();
  PageWriter(const PageWriter&) = delete;
  PageWriter& operator=(const PageWriter&) = delete;

  /// Replaces a page that is not written yet.
  void write(std::string page);
  /// The same, and waits until it is written, with retries for up to `seconds`. Throws SpecError naming the
  /// file.
  void write_last(std::string page, double seconds);
  OutletRecord record() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with the thread
};

}  // namespace trainerd::io
