#include "core/model/flow_offload.h"

#include <algorithm>

namespace trainerd::core::model {

using namespace kernels;
using parallel::CommOptions;

namespace {

constexpr CommOptions kCopy{.label = "activations", .progress = parallel::Progress::background};

}  // namespace

FlowOffload::FlowOffload(const parallel::HostLink& link, const Buffers& forward, const Buffers& backward)
    : link_(link) {
  for (std::size_t i = 0; i < 2; ++i) {
    kept_[i].flow = forward[i];
    kept_[i].arena = Arena("kept_flow", forward[i].data, align_up(forward[i].bytes()));
    fetched_[i].flow = backward[i];
  }
}

void FlowOffload::land(Stream& stream, std::unique_ptr<parallel::Work>& copied) {
  if (copied) copied->wait(stream);
  copied.reset();
}

Arena& FlowOffload::arena(Stream& stream, std::size_t n) {
  Kept& kept = kept_[n % 2];
  land(stream, kept.copied);
  kept.arena.release(0);
  return kept.arena;
}

bool FlowOffload::holds(const Tensor& flow_TD) const {
  return std::ranges::any_of(kept_, [&](const Kept& kept) { return kept.flow.data == flow_TD.data; });
}

void FlowOffload::keep(Stream& stream, std::size_t n, const Tensor& flow_TD, const Tensor& host_TD) {
  kept_[n % 2].host = host_TD.data;
  kept_[n % 2].copied = link_.to->all_gather(stream, flow_TD, host_TD, kCopy);
}

void FlowOffload::fetch(Stream& stream, std::size_t n, const Tensor& host_TD) {
  Fetched& to = fetched_[n % 2];
  if (to.copied) return;
  // The last copies to the host may still be in progress.
  for (Kept& kept : kept_)
    if (kept.host == host_TD.data) land(stream, kept.copied);
  to.rows = to.flow.rows(0, host_TD.size(0));
  to.copied = link_.from->all_gather(stream, host_TD, to.rows, kCopy);
}

Tensor FlowOffload::fetched(Stream& stream, std::size_t n) {
  Fetched& from = fetched_[n % 2];
  land(stream, from.copied);
  return from.rows;
}

}  // namespace trainerd::core::model
