#include "parallel/expert/expert.h"

#include <algorithm>

#include "parallel/comm/turns.h"

namespace trainerd::parallel {

using namespace kernels;

namespace {

Tensor take_received(const ExpertParallel& ep, Stream& s, const Tensor& x) {
  Shape shape = x.shape;
  shape.sizes[0] = ep.received(shape[0]);
  return s.scratch().take(x.dtype, shape, MemoryTerm::activations);
}

/// A message in progress, or none if it is not to run beside what comes next. On a device with streams every
/// message would.
std::shared_ptr<Work> begun(std::unique_ptr<Work> work, Stream& s, Progress progress) {
  if (progress == Progress::background) return work;
  work->wait(s);
  return nullptr;
}

void wait(Work* work, Stream& s) {
  if (work != nullptr) wait_in_turns(*work, s);
}

/// Sends both by `send`, which gets a tensor, its destination and a label.
template <class Send>
void send_both(Stream& s, const Choices& from, const Choices& to, const Send& send) {
  const std::shared_ptr<Work> weights = send(from.weight_TK, to.weight_TK, "experts: weights");
  if (!s.shared()) weights->wait(s);
  const std::shared_ptr<Work> choices = send(from.expert_TK, to.expert_TK, "experts: choices");
  s.give_way();
  if (s.shared()) weights->wait(s);
  choices->wait(s);
}

}  // namespace

void send_choices(const ExpertParallel& ep, Backend& backend, Stream& s, const Choices& own,
                  const TokenSlots& slots, std::int64_t experts_of_rank, const Tensor& flag, float flag_value,
                  const Choices& received) {
  base::check(ep.ranks() > 1, "choices are sent among several ranks");
  const Progress progress = ep.progress(s, false);
  if (ep.slots == 0)
    return send_both(s, own, received, [&](const Tensor& x, const Tensor& all, const char* label) {
      return ep.group->all_gather(s, x, all, {.label = label, .progress = progress});
    });
  backend.place_tokens(s, {.expert_TK = own.expert_TK,
                           .experts_of_rank = experts_of_rank,
                           .slot_TK = slots.slot_TK,
                           .source_NS = slots.source_NS,
                           .flag = flag,
                           .flag_value = flag_value});
  const ArenaScope scope(s.scratch());
  const Tensor expert_RK = take_received(ep, s, own.expert_TK),
               weight_RK = take_received(ep, s, own.weight_TK);
  backend.slot_choices(s, {.expert_TK = own.expert_TK,
                           .weight_TK = own.weight_TK,
                           .source_NS = slots.source_NS,
                           .expert_RK = expert_RK,
                           .weight_RK = weight_RK});
  send_both(s, {expert_RK, weight_RK}, received, [&](const Tensor& x, const Tensor& to, const char* label) {
    return ep.group->all_to_all(s, x, to, {.label = label, .progress = progress});
  });
}

TokenTransfer::TokenTransfer(const ExpertParallel& ep, Stream& s, const Tensor& x) {
  if (ep.ranks() == 1) return;
  all_ = take_received(ep, s, x);
  if (ep.slots > 0) sent_ = take_received(ep, s, x);
}

void TokenTransfer::start(const ExpertParallel& ep, Backend& backend, Stream& s, const Tensor& x,
                          const TokenSlots& slots, const char* label, Progress progress) {
  const CommOptions options{.label = label, .progress = progress};
  if (ep.ranks() == 1) {
    all_ = x;
    return;
  }
  if (ep.slots == 0) {
    work_ = begun(ep.group->all_gather(s, x, all_, options), s, progress);
    return;
  }
  const std::int64_t copies = slots.slot_TK.size(1);
  backend.gather_rows(s, {.from_TD = x,
                          .source_R = slots.source_NS.reshaped({slots.source_NS.numel()}),
                          .copies = copies,
                          .to_RD = sent_,
                          .usual_rows = std::min(sent_.size(0), x.size(0) * std::min(copies, ep.ranks()))});
  work_ = begun(ep.group->all_to_all(s, sent_, all_, options), s, progress);
}

const Tensor& TokenTransfer::arrived(Stream& s) const {
  wait(work_.get(), s);
  return all_;
}

Tensor take_results(const ExpertParallel& ep, Stream& s, const Tensor& to) {
  return ep.ranks() == 1 ? to : take_received(ep, s, to);
}

ResultTransfer::ResultTransfer(const ExpertParallel& ep, Stream& s, const Tensor& results, const Tensor& to,
                               const char* label, Progress progress)
    : to_(to) {
  const CommOptions options{.label = label, .progress = progress};
  if (ep.ranks() == 1) return;
  if (ep.slots == 0) {
    work_ = begun(ep.group->reduce_scatter(s, results, to, options), s, progress);
    return;
  }
  back_ = take_received(ep, s, to);
  work_ = begun(ep.group->all_to_all(s, results, back_, options), s, progress);
}

void ResultTransfer::add_up(const ExpertParallel& ep, Backend& backend, Stream& s,
                            const TokenSlots& slots) const {
  wait(work_.get(), s);
  if (ep.ranks() > 1 && ep.slots > 0)
    backend.combine_rows(s, {.from_RD = back_, .row_TK = slots.slot_TK, .weight_TK = {}, .to_TD = to_});
}

void ResultTransfer::add_up_choices(const ExpertParallel& ep, Backend& backend, Stream& s,
                                    const TokenSlots& slots) const {
  wait(work_.get(), s);
  if (ep.ranks() > 1 && ep.slots > 0)
    backend.slot_weights(s, {.from_RK = back_, .slot_TK = slots.slot_TK, .weight_TK = to_});
}

}  // namespace trainerd::parallel
