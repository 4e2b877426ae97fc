#include "core/run/worker/injector.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <csignal>
#include <cstring>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/tensor/rng.h"

namespace trainerd::core::run {
namespace {

using job::FaultKind;

[[noreturn]] void compute_for_ever() {
  for (volatile std::uint64_t turns = 0;;) turns = turns + 1;
}

/// A part of the rank's state with its parameter view.
struct Place {
  const model::ParamView* view = nullptr;
  const model::StateRun* run = nullptr;
};

/// The places where the fault may flip a bit.
std::vector<Place> places_of(train::Trainer& trainer, const job::Fault& fault) {
  const model::ParamStore& params = trainer.params();
  std::vector<Place> places;
  for (std::size_t v = 0; v < params.views(); ++v) {
    const model::ParamView& view = params.view(v);
    if (fault.kind == FaultKind::flip_gradient && !view.has_grads()) continue;
    for (const model::StateRun& run : view.state_runs())
      if (fault.tensor.empty() || params.info(run.id).name == fault.tensor) places.push_back({&view, &run});
  }
  return places;
}

}  // namespace

void compute_for(double seconds) {
  const double end = base::monotonic_seconds() + seconds;
  while (base::monotonic_seconds() < end) {}
}

Injector::Injector(const job::FaultsOptions& options, std::int64_t rank, std::int64_t ranks,
                   const std::vector<std::string>& done, train::Trainer& trainer, Report report,
                   ResetLinks reset_links)
    : plan_(options, ranks, done),
      rank_(rank),
      trainer_(trainer),
      report_(std::move(report)),
      reset_links_(std::move(reset_links)) {
  for (const DueFault& named : plan_.named())
    if (named.fault.rank == rank && job::flips_tensor(named.fault.kind) &&
        std::find(done.begin(), done.end(), named.id) == done.end() &&
        places_of(trainer, named.fault).empty())
      throw base::spec_error(
          fmt::format("faults.inject: {}: rank {} updates nothing of a tensor '{}'; see "
                      "`trainerd checkpoint show` for names and ranks",
                      named.id, rank, named.fault.tensor));
}

bool Injector::slows(std::int64_t step) const {
  if (step <= slow_until_) return true;
  const std::vector<DueFault> due = plan_.due(step);
  return std::any_of(due.begin(), due.end(), [&](const DueFault& d) {
    return d.fault.rank == rank_ && d.fault.kind == FaultKind::slow;
  });
}

void Injector::begin(std::int64_t step) {
  step_ = step;
  calls_ = computations_ = 0;
  in_step_.clear(), gradients_.clear(), messages_.clear();
  for (DueFault& due : plan_.due(step)) {
    if (due.fault.rank != rank_ || due.fault.kind == FaultKind::flip_checkpoint) continue;
    plan_.set_done(due.id);
    if (due.fault.kind == FaultKind::flip_parameter) flip(due);
    else if (due.fault.kind == FaultKind::flip_gradient) gradients_.push_back(std::move(due));
    else if (due.fault.kind == FaultKind::flip_message) messages_.push_back(std::move(due));
    else in_step_.push_back(std::move(due));
  }
  const bool acts = !in_step_.empty() || step <= slow_until_;
  trainer_.observe_actions(acts ? [this](std::span<const parallel::Action> actions) { in_pass(actions); }
                                : train::ObserveActions{});
  if (messages_.empty()) return trainer_.observe_sends({});
  trainer_.observe_sends(
      [this](kernels::Stream& stream, const parallel::GroupInfo& group, const parallel::CommCall& call) {
        const bool floats = kernels::is_float(call.sent->dtype);
        if (!floats || call.sent->bytes() == 0) return;
        for (const DueFault& due : std::exchange(messages_, {})) flip_message(due, stream, group, call);
      });
}

/// Slows the step at its first action; makes the other faults after the forwards.
void Injector::in_pass(std::span<const parallel::Action> actions) {
  if (calls_++ == 0) {
    for (const DueFault& due : in_step_) {
      if (due.fault.kind != FaultKind::slow) continue;
      slow_until_ = step_ + due.fault.steps - 1;
      factor_ = due.fault.factor;
      report(due, fmt::format("rank {} takes {} times as long, for {} {}", rank_, factor_, due.fault.steps,
                              due.fault.steps == 1 ? "step" : "steps"));
    }
    if (step_ <= slow_until_) compute_for((factor_ - 1) * compute_seconds_);
  }
  const auto forwards = static_cast<std::int64_t>(
      trainer_.batch_requests(parallel::Pass::train, trainer_.batch_of_step(step_)).size());
  if (calls_ <= forwards && !actions.empty()) return;
  for (const DueFault& due : std::exchange(in_step_, {})) {
    happen(due);
    if (due.fault.kind == FaultKind::reset_link) break;  // the attempt ends, as after a death
  }
}

void Injector::happen(const DueFault& due) {
  switch (due.fault.kind) {
    case FaultKind::kill:
      report(due, fmt::format("rank {} is killed", rank_));
      ::kill(::getpid(), SIGKILL);
      break;
    case FaultKind::crash:
      report(due, fmt::format("rank {} crashes", rank_));
      std::signal(SIGSEGV, SIG_DFL);
      ::raise(SIGSEGV);
      break;
    case FaultKind::stop:
      report(due, fmt::format("rank {} is stopped", rank_));
      ::kill(::getpid(), SIGSTOP);
      break;
    case FaultKind::hang: report(due, fmt::format("rank {} computes for ever", rank_)); compute_for_ever();
    case FaultKind::kill_agent: report(due, fmt::format("the agent of rank {} is killed", rank_)); break;
    case FaultKind::reset_link:
      report(due, fmt::format("the connections of rank {} to the other ranks close", rank_));
      reset_links_();
      break;
    case FaultKind::drop_link:
      report(due,
             fmt::format("for {} s the agent of rank {} and those of other nodes do not reach each other",
                         due.fault.seconds, rank_));
      break;
    case FaultKind::fill_disk:
      report(due, fmt::format("for {} s the agent of rank {} has no space for checkpoints", due.fault.seconds,
                              rank_));
      break;
    case FaultKind::fail_store:
      report(due, fmt::format("for {} s all fails that the agent of rank {} does in the durable tier",
                              due.fault.seconds, rank_));
      break;
    case FaultKind::device_error:
      report(due, fmt::format("the driver reports XID {} of the GPU of rank {}", due.fault.xid, rank_));
      break;
    case FaultKind::slow:
    case FaultKind::flip_parameter:
    case FaultKind::flip_gradient:
    case FaultKind::flip_checkpoint:
    case FaultKind::flip_message: break;
  }
}

std::function<void()> Injector::before_update(std::function<void()> before) {
  if (gradients_.empty()) return before;
  return [this, before = std::move(before)] {
    if (before) before();
    flip_gradients();
  };
}

void Injector::flip_gradients() {
  for (const DueFault& due : gradients_)
    if (computations_ < due.fault.times) flip(due);
  ++computations_;
}

void Injector::flip(const DueFault& due) {
  const bool gradient = due.fault.kind == FaultKind::flip_gradient;
  const std::vector<Place> places = places_of(trainer_, due.fault);
  if (places.empty()) return;
  // If a step is computed again, another element each time, unless the job names one.
  const std::int64_t draw = due.fault.element >= 0 ? 0 : computations_;
  const std::uint64_t key = kernels::hash_name(due.id, static_cast<std::uint64_t>(draw));
  const Place& place = places[kernels::mix_keys(key, 0) % places.size()];
  const auto count = static_cast<std::uint64_t>(place.run->count);
  const auto element = static_cast<std::int64_t>(
      (due.fault.element >= 0 ? static_cast<std::uint64_t>(due.fault.element) : kernels::mix_keys(key, 1)) %
      count);
  const model::StatePart& part = place.view->state_parts()[place.run->part];
  const kernels::Tensor x = (gradient ? part.grads : part.master).rows(place.run->begin + element, 1);
  flip_bit(due, trainer_.stream(), x,
           fmt::format("element {} of {}{} at rank {}", element, gradient ? "the gradient of " : "",
                       place.view->info(place.run->id).name, rank_));
}

void Injector::flip_message(const DueFault& due, kernels::Stream& stream, const parallel::GroupInfo& group,
                            const parallel::CommCall& call) {
  const kernels::Tensor x = call.sent->reshaped({call.sent->numel()});
  const auto element = static_cast<std::int64_t>(kernels::mix_keys(kernels::hash_name(due.id, 0), 1) %
                                                 static_cast<std::uint64_t>(x.numel()));
  flip_bit(due, stream, x.rows(element, 1),
           fmt::format("element {} of what rank {} sends in {} '{}' of group {}", element, rank_,
                       parallel::to_string(call.kind), call.label, group.name));
}

/// Flips the fault's bit in `element`, a tensor of one element.
void Injector::flip_bit(const DueFault& due, kernels::Stream& stream, const kernels::Tensor& element,
                        const std::string& place) {
  std::array<std::byte, 4> bytes{};
  const auto used = std::span(bytes).first(static_cast<std::size_t>(element.bytes()));
  trainer_.backend().read_back(stream, element, used);
  const std::int64_t bit = bit_to_flip(due.fault.bit, element.bytes());
  const auto value = [&] {  // bf16 is the upper half of fp32
    std::uint32_t word = 0;
    if (element.dtype == kernels::DType::f16) {
      kernels::Fp16 half;
      std::memcpy(&half, used.data(), sizeof(half));
      return kernels::to_float(half);
    }
    std::memcpy(reinterpret_cast<std::byte*>(&word) + (4 - used.size()), used.data(), used.size());
    return std::bit_cast<float>(word);
  };
  const float was = value();
  bytes[static_cast<std::size_t>(bit / 8)] ^= static_cast<std::byte>(1u << (bit % 8));
  report(due, fmt::format("bit {} of {}: {} becomes {}", bit, place, was, value()));
  trainer_.backend().write(stream, used, element);
}

void Injector::report(const DueFault& due, const std::string& what) {
  FaultInjected injected{.id = due.id, .message = fmt::format("injected in step {}: {}", step_, what)};
  if (job::breaks_agent(due.fault.kind))
    injected.at_agent = due.fault.kind, injected.seconds = due.fault.seconds;
  if (due.fault.kind == FaultKind::device_error) injected.rank = rank_, injected.xid = due.fault.xid;
  report_(injected);
}

void Injector::measured(std::int64_t step, double compute_seconds) {
  if (step > slow_until_) compute_seconds_ = compute_seconds;
}

}  // namespace trainerd::core::run
