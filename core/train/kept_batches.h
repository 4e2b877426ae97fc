#pragma once

#include <cstddef>
#include <deque>

#include "core/train/batch_source.h"
#include "kernels/base/error.h"

namespace trainerd::core::train {

/// Keeps the microbatches of one pass from another source in host memory, so that a step that is computed
/// again reads the same ones.
class KeptBatches final : public BatchSource {
 public:
  /// `source` must outlive it.
  explicit KeptBatches(BatchSource& source) : source_(source) {}
  const HostBatch& next(const BatchRequest& request) override {
    if (at_ == kept_.size()) kept_.push_back({request, source_.next(request)});
    const Kept& kept = kept_[at_++];
    base::check(kept.request == request, "a pass asks for its microbatches in the same order again");
    return kept.batch;
  }
  /// The next pass gets the same microbatches again.
  void rewind() { at_ = 0; }

 private:
  struct Kept {
    BatchRequest request;
    HostBatch batch;
  };
  BatchSource& source_;
  std::deque<Kept> kept_;
  std::size_t at_ = 0;
};

}  // namespace trainerd::core::train
