#include "kernels/backend/graph_backend.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::kernels {
namespace {

/// The first step is cold. The decision is made when the second one ends, and uses its times.
constexpr int kDecidingSteps = 2;

/// `a` plus `factor` times `b`.
BackendCounters sum(BackendCounters a, const BackendCounters& b, std::int64_t factor) {
  static_assert(sizeof(BackendCounters) == 5 * sizeof(std::int64_t), "every counter is summed");
  a.widened_gemms += factor * b.widened_gemms;
  a.reference_gemms += factor * b.reference_gemms;
  a.own_attention += factor * b.own_attention;
  a.attention_fallbacks += factor * b.attention_fallbacks;
  a.missed_gemm_choices += factor * b.missed_gemm_choices;
  return a;
}

/// While it exists, a stream's operators take scratch from another arena.
class ScratchAt {
 public:
  ScratchAt(Stream& stream, Arena& scratch) : stream_(stream), before_(stream.exchange_scratch(&scratch)) {}
  ~ScratchAt() { stream_.exchange_scratch(before_); }
  ScratchAt(const ScratchAt&) = delete;
  ScratchAt& operator=(const ScratchAt&) = delete;

 private:
  Stream& stream_;
  Arena* before_;
};

}  // namespace

GraphBackend::GraphBackend(Backend& inner, GraphChoice choice) : inner_(inner) {
  use_.state = choice == GraphChoice::always ? GraphUse::State::used : GraphUse::State::deciding;
  least_.fill(std::numeric_limits<double>::infinity());
}

BackendCounters GraphBackend::counters() const { return sum(inner_.counters(), counted_, 1); }

void GraphBackend::open_list(Stream& s, ListPlace place) {
  base::check(stream_ == nullptr, "one list of calls is open at a time");
  if (use_.state == GraphUse::State::not_worth) return;
  stream_ = &s;
  s.hold_by(this);
  spot_ = {place, 0};
  begin_list();
}

void GraphBackend::close_list(Stream& s) {
  if (stream_ == nullptr) return;
  base::check(stream_ == &s, "the list that is open is another stream's");
  put_on_device();
  s.hold_by(nullptr);
  stream_ = nullptr;
}

void GraphBackend::begin_list() {
  lists_ = &spots_[spot_];
  at_ = &lists_->root;
  path_.clear();
  put_ = 0;
  made_ = 0;
}

void GraphBackend::append(std::unique_ptr<const Call> call) {
  auto node = std::make_unique<CallNode>();
  node->call = std::move(call);
  at_->next.push_back(std::move(node));
  at_ = at_->next.back().get();
  path_.push_back(at_);
  put_ = path_.size();
}

void GraphBackend::put_on_device() {
  if (issuing_ || made_ == 0) return;
  end_list();
  ++spot_.number;
  begin_list();
}

/// Puts the rest of the open list on the device.
void GraphBackend::end_list() {
  if (path_.empty()) return;  // its calls were made at once
  const Issuing guard(*this);
  if (!at_->list) at_->list.emplace();
  CallList& list = *at_->list;
  if (++list.times > 1) {
    came_again(list);
  } else {
    put_held();
    if (++lists_->fresh > kMaxFreshLists) give_up("arguments that change from step to step");
  }
}

/// Handles a list that has come before. All calls of the path are held back.
void GraphBackend::came_again(CallList& list) {
  const bool is_short = static_cast<std::int64_t>(path_.size()) < kMinGraphCalls;
  if (list.times == 2) --lists_->fresh, ++use_.lists, lists_->short_lists += is_short;
  if (is_short) return put_held();
  if (!list.graph) {
    try {
      capture_held(list);
    } catch (const base::DeviceError& error) {
      use_.failed = true;
      put_held();
      return give_up(error.what());
    }
  }
  inner_.replay(*stream_, *list.graph);
  counted_ = sum(counted_, list.counted, 1);
  ++use_.launches;
}

void GraphBackend::capture_held(CallList& list) {
  const BackendCounters before = inner_.counters();
  list.graph = inner_.capture([this](Stream& stream) {
    for (const CallNode* node : path_) make(*node->call, stream);
  });
  list.counted = sum(inner_.counters(), before, -1);
  counted_ = sum(counted_, list.counted, -1);
  ++use_.graphs;
  use_.graph_calls += static_cast<std::int64_t>(path_.size());
}

void GraphBackend::put_held() {
  const Issuing guard(*this);
  for (; put_ < path_.size(); ++put_) make(*path_[put_]->call, *stream_);
}

void GraphBackend::make(const Call& call, Stream& stream) const {
  const Arena& own = stream_->scratch();
  Arena rest(own.name(), own.base() + call.scratch(), own.capacity() - call.scratch(),
             inner_.target().alignment);
  const ScratchAt scope(stream, rest);
  call.make(inner_, stream);
}

void GraphBackend::give_up(const std::string& why) {
  lists_->given_up = why;
  lists_->fresh = 0;
  lists_->root = {};
}

void GraphBackend::forget() {
  base::check(stream_ == nullptr, "how operators run is chosen between lists of calls");
  spots_.clear();
}

void GraphBackend::timed(Operator op, double seconds) {
  const auto i = static_cast<std::size_t>(op);
  // A full queue delays some calls, so the minimum is the time of a call alone.
  least_[i] = std::min(least_[i], seconds);
  calls_[i] += spot_.place.of_step;
}

void GraphBackend::end_step(double device_seconds) {
  base::check(stream_ == nullptr, "a step ends between lists of calls");
  if (use_.state != GraphUse::State::deciding) {
    ++use_.steps_since;
    return;
  }
  const auto calls = std::exchange(calls_, {});
  if (++decided_steps_ < kDecidingSteps) return;
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (calls[i] > 0) use_.issue_seconds += static_cast<double>(calls[i]) * least_[i];
  use_.device_seconds = device_seconds;
  use_.state =
      graphs_pay(use_.issue_seconds, device_seconds) ? GraphUse::State::used : GraphUse::State::not_worth;
}

GraphUse GraphBackend::graph_use() const {
  GraphUse use = use_;
  std::map<std::string, std::int64_t> without;
  for (const auto& [spot, lists] : spots_) {
    const std::string part = std::string(spot.place.part) + ": ";
    if (!lists.given_up.empty()) ++without[part + lists.given_up];
    if (lists.short_lists > 0)
      without[part + "fewer than " + std::to_string(kMinGraphCalls) + " calls"] += lists.short_lists;
  }
  for (const auto& [why, count] : without)
    use.without.push_back(why + (count > 1 ? " (" + std::to_string(count) + " lists)" : ""));
  return use;
}

}  // namespace trainerd::kernels
