#include "core/plan/search/layout_space.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "core/model/parameters.h"
#include "core/spec/check_layers.h"
#include "core/spec/check_sizes.h"
#include "parallel/layout/layout.h"
#include "parallel/layout/placement.h"
#include "parallel/layout/schedule_shape.h"
#include "parallel/layout/split.h"

namespace trainerd::core::plan {
namespace {

using parallel::ScheduleKind;

std::vector<std::int64_t> divisors(std::int64_t of) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t d = 1; d * d <= of; ++d) {
    if (of % d != 0) continue;
    low.push_back(d);
    if (d != of / d) high.push_back(of / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

/// Shorter parts of sequences are left to tp and pp, which cut other things.
constexpr std::int64_t kContextTokens = 8192;

template <class T>
std::vector<T> or_given(const std::vector<T>& given, std::vector<T> otherwise) {
  return given.empty() ? std::move(otherwise) : given;
}

/// Adds the job's own value, without duplicates.
template <class T>
std::vector<T> with_own(std::vector<T> values, const T& own) {
  if (std::find(values.begin(), values.end(), own) == values.end()) values.push_back(own);
  return values;
}

class Enumerator {
 public:
  Enumerator(const job::JobSpec& job, const parallel::Topology& topology, const LayoutSpace& space)
      : job_(job),
        topology_(topology),
        space_(space),
        own_(choice_of(job)),
        padded_(job.padding_sequences() > 0),
        smallest_(std::ranges::min(job.batch.sizes())) {}

  /// Includes layouts with padding if the job's own has some, or if no other layout exists.
  std::vector<LayoutChoice> all() {
    find();
    if (found_.empty() && !std::exchange(padded_, true)) find();
    return std::move(found_);
  }

 private:
  void find() {
    const parallel::ParallelOptions& p = job_.parallel;
    const std::int64_t ranks = p.ranks();
    for (const std::int64_t tp : or_given(space_.tp, divisors(ranks))) {
      at_.tp = tp;
      if (ranks % tp != 0 || expert_cuts().empty()) continue;
      for (const std::int64_t cp : or_given(space_.cp, context_sizes(ranks / tp)))
        for (const std::int64_t pp : or_given(space_.pp, divisors(ranks / tp))) {
          if (ranks % (tp * cp * pp) != 0 || !parallel::split_problem(job_.model.layers, pp).empty())
            continue;
          at_.cp = cp, at_.pp = pp, at_.dp = ranks / tp / cp / pp;
          if (!padded_ && job_.batch.global % at_.dp != 0) continue;
          for (const std::int64_t etp : expert_cuts()) {
            at_.etp = etp;
            for (const std::int64_t ep : or_given(space_.ep, expert_sizes())) {
              at_.ep = ep, at_.zero_group = 0;
              if (axes_can() && tp_stays()) micros();
            }
          }
        }
    }
  }

  std::vector<std::int64_t> context_sizes(std::int64_t ranks) const {
    std::vector<std::int64_t> sizes{1};
    const std::int64_t length = job_.model.seq_len;
    for (std::int64_t cp = 2; cp * kContextTokens <= length && !job_.loss.dpo.on(); cp *= 2)
      if (ranks % cp == 0 && length % (2 * cp) == 0) sizes.push_back(cp);
    return with_own(sizes, own_.cp);
  }

  /// The values of etp with which the model can be cut over tp.
  std::vector<std::int64_t> expert_cuts() const {
    std::vector<std::int64_t> cuts{0};
    if (job_.model.experts.on() && at_.tp > 1) cuts.push_back(1);
    cuts = or_given(space_.etp, cuts);
    std::erase_if(cuts, [&](std::int64_t etp) {
      return (etp == 1 && at_.tp == 1) ||
             !model::tensor_parallel_problem(job_.model, at_.tp, etp == 1).empty();
    });
    return cuts;
  }

  std::vector<std::int64_t> expert_sizes() const {
    if (!job_.model.experts.on()) return {1};
    const std::int64_t sharing = at_.gradient_ranks() * (at_.etp == 1 ? at_.tp : 1);
    return divisors(std::gcd(job_.model.experts.count, sharing));
  }

  /// False if the job's order of axes, its cp_comm, or what else it asks for excludes these sizes.
  bool axes_can() {
    if (at_.cp == 1 && at_.ep == 1 && at_.etp == 0) return true;
    at_.sequence_parallel = at_.etp == 1;
    const job::JobSpec job = with_choice(job_, at_);
    const parallel::ParallelOptions& p = job.parallel;
    return parallel::grid_problem(p).empty() && spec::expert_parallel_problems(job).empty() &&
           (at_.cp == 1 || p.cp_comm != parallel::ContextComm::all_to_all ||
            model::heads_divide(job_.model, p.tp, p.cp));
  }

  bool tp_stays() const {
    if (job_.parallel.allow_tp_across_nodes || at_.tp == 1) return true;
    if (at_.tp > (topology_.nvlink_domain > 0 ? topology_.nvlink_domain : topology_.devices_per_node))
      return false;
    const job::JobSpec job = with_choice(job_, at_);
    return parallel::PlacedGrid(parallel::make_grids(job.parallel).dense, topology_).tp_problem().empty();
  }

  void micros() {
    const std::int64_t sequences = (job_.batch.global + at_.dp - 1) / at_.dp;  // for the rank with most
    std::vector<std::int64_t> micros;
    for (std::int64_t m = 1; m <= sequences; m *= 2) micros.push_back(m);
    for (const std::int64_t micro : or_given(space_.micro, with_own(micros, own_.micro))) {
      // Each rank and each microbatch has a sequence of every global batch.
      if (micro * (at_.dp - 1) >= smallest_ || micro > smallest_ || (!padded_ && sequences % micro != 0))
        continue;
      at_.micro = micro;
      for (const bool sequence_parallel : or_given(space_.sequence_parallel, {false, true})) {
        if (at_.etp == 1 && !sequence_parallel) continue;
        if (sequence_parallel && (at_.tp == 1 || micro * (job_.model.seq_len / at_.cp) % at_.tp != 0))
          continue;
        at_.sequence_parallel = sequence_parallel;
        for (const job::RecomputeOptions& recompute : recomputes()) {
          at_.recompute = recompute;
          schedules((sequences + micro - 1) / micro);
        }
      }
    }
  }

  std::vector<job::RecomputeOptions> recomputes() const {
    std::vector<job::RecomputeOptions> kinds{{job::RecomputeKind::none, 1},
                                             {job::RecomputeKind::selective, 1}};
    for (std::int64_t every = 1; every <= 4 && every <= job_.model.layers; ++every)
      kinds.push_back({job::RecomputeKind::full, every});
    kinds = or_given(space_.recompute, with_own(kinds, own_.recompute));
    if (job_.parallel.offload_activations)
      std::erase_if(kinds, [](const job::RecomputeOptions& r) { return r.kind != job::RecomputeKind::full; });
    return kinds;
  }

  /// A larger number of chunks is useful only if the largest chunk gets smaller; otherwise it only adds
  /// messages.
  std::vector<std::int64_t> virtual_stages() const {
    std::vector<std::int64_t> counts{1};
    for (std::int64_t layers = job_.model.layers; layers >= 1; --layers) {
      const std::int64_t v = (job_.model.layers + at_.pp * layers - 1) / (at_.pp * layers);
      if (v > counts.back()) counts.push_back(v);
    }
    const std::int64_t most = (job_.model.layers + 2) / at_.pp;  // embedding and head in chunks of their own
    if (most > counts.back()) counts.push_back(most);
    return with_own(counts, own_.virtual_stages);
  }

  void schedules(std::int64_t microbatches) {
    using enum ScheduleKind;
    // v_half and v_min are slow ways to little memory, and looked at where the job has them. So is
    // dualpipe_v, whose bounds know nothing of the messages that turns hide.
    for (const ScheduleKind kind :
         or_given(space_.schedule, with_own({one_f_one_b, gpipe, zb_h1, zb_v, interleaved}, own_.schedule))) {
      at_.schedule = kind;
      // With one stage all schedules are equal, except that some split the backward, which gains nothing
      // there.
      if (at_.pp == 1 && kind != (space_.schedule.empty() ? one_f_one_b : space_.schedule.front())) continue;
      if (microbatches > spec::kMaxComputations / at_.pp) continue;
      if (kind != interleaved) {
        at_.virtual_stages = parallel::goes_back(kind) && at_.pp > 1 ? 2 : 1;
        const std::int64_t chunks = at_.pp * at_.virtual_stages;
        if (microbatches <= spec::kMaxComputations / chunks &&
            parallel::split_problem(job_.model.layers, chunks).empty())
          states();
        continue;
      }
      for (const std::int64_t v : or_given(space_.virtual_stages, virtual_stages())) {
        // Interleaved with one chunk is 1F1B.
        if ((v == 1 && space_.schedule.empty()) || microbatches > spec::kMaxComputations / (at_.pp * v) ||
            (v > 1 && at_.pp == 1) || !parallel::split_problem(job_.model.layers, at_.pp * v).empty())
          continue;
        // Uneven groups of microbatches only take more memory. The nearest multiple of the stages has the
        // same bubble.
        const bool own = own_.schedule == interleaved && own_.pp == at_.pp && own_.virtual_stages == v;
        if (microbatches % at_.pp != 0 && !own && space_.schedule.empty()) continue;
        if (!parallel::schedule_problem({kind, static_cast<int>(at_.pp), static_cast<int>(v),
                                         static_cast<int>(microbatches), parallel::Pass::train})
                 .empty())
          continue;
        at_.virtual_stages = v;
        states();
      }
    }
  }

  bool experts_apart() const { return at_.ep > 1 || at_.etp == 1; }

  std::vector<std::int64_t> groups(std::int64_t zero) const {
    if (zero == 0 || experts_apart()) return {0};
    std::vector<std::int64_t> sizes{0};
    const std::int64_t domain = std::max(topology_.nvlink_domain, std::int64_t{1}) / at_.tp;
    for (const std::int64_t size : with_own<std::int64_t>({domain, 8, 32, 128}, own_.zero_group))
      if (size > 1 && size < at_.gradient_ranks() && at_.gradient_ranks() % size == 0)
        sizes = with_own(sizes, size);
    return sizes;
  }

  void states() {
    for (const std::int64_t zero : or_given(space_.zero, {0, 1, 2, 3})) {
      // A single rank shards nothing, so one value is enough.
      if (at_.most_gradient_ranks() == 1 && !job_.parallel.offloads_state() &&
          zero != (space_.zero.empty() ? 0 : space_.zero.front()))
        continue;
      if (zero < (job_.parallel.offload_params ? 3 : job_.parallel.offload_grads ? 2 : 0)) continue;
      at_.zero = zero;
      if (zero == 3 && with_choice(job_, at_).parallel.takes_turns()) continue;
      for (const std::int64_t group : or_given(space_.zero_group, groups(zero))) {
        if (group != 0 && (zero == 0 || group == 1 || experts_apart() || at_.gradient_ranks() % group != 0))
          continue;
        if (job_.parallel.offload_grads && group > 0) continue;
        at_.zero_group = group;
        for (const std::int64_t bucket : or_given(space_.bucket_bytes, {own_.bucket_bytes})) {
          at_.bucket_bytes = bucket;
          found_.push_back(at_);
        }
      }
    }
  }

  const job::JobSpec& job_;
  const parallel::Topology& topology_;
  const LayoutSpace& space_;
  const LayoutChoice own_;
  bool padded_;            ///< include layouts with padding
  std::int64_t smallest_;  ///< of the run's global batches
  LayoutChoice at_;
  std::vector<LayoutChoice> found_;
};

std::string text(const job::RecomputeOptions& r) {
  switch (r.kind) {
    case job::RecomputeKind::none: return "none";
    case job::RecomputeKind::selective: return "selective";
    case job::RecomputeKind::full: break;
  }
  return r.every == 1 ? "full" : "full, every: " + std::to_string(r.every);
}

}  // namespace

LayoutChoice choice_of(const job::JobSpec& job) {
  const parallel::ParallelOptions& p = job.parallel;
  return {.tp = p.tp,
          .cp = p.cp,
          .pp = p.pp,
          .dp = p.dp,
          .ep = p.ep,
          .etp = p.etp,
          .zero = p.zero,
          .zero_group = p.zero_group,
          .bucket_bytes = p.bucket_bytes,
          .micro = job.batch.micro,
          .virtual_stages = p.virtual_stages,
          .sequence_parallel = p.sequence_parallel,
          .schedule = p.schedule,
          .recompute = job.recompute};
}

job::JobSpec with_choice(const job::JobSpec& job, const LayoutChoice& c) {
  job::JobSpec chosen = job;
  parallel::ParallelOptions& p = chosen.parallel;
  p.tp = c.tp, p.cp = c.cp, p.pp = c.pp, p.dp = c.dp, p.ep = c.ep, p.etp = c.etp, p.zero = c.zero,
  p.zero_group = c.zero_group, p.bucket_bytes = c.bucket_bytes;
  p.virtual_stages = c.virtual_stages, p.sequence_parallel = c.sequence_parallel, p.schedule = c.schedule;
  // Keys that a layout has no use for have their defaults.
  if (p.tp == 1) p.tp_overlap_chunks = 1;
  if (p.tp == 1 || (parallel::splits_backward(p.schedule) && !p.sequence_parallel))
    p.overlap_tp_backward = true;
  if (p.pp == 1) p.overlap_p2p = true;
  if (p.cp == 1) p.cp_comm = parallel::ContextComm::automatic;
  if (p.ep == 1) p.ep_capacity = 0, p.ep_comm = parallel::ExpertComm::all_gather, p.overlap_ep = true;
  chosen.batch.micro = c.micro;
  chosen.recompute = c.recompute;
  return chosen;
}

std::vector<std::string> differences(const LayoutChoice& from, const LayoutChoice& to) {
  std::vector<std::string> keys;
  const auto number = [&](const char* key, std::int64_t LayoutChoice::*value) {
    if (from.*value != to.*value) keys.push_back(std::string(key) + ": " + std::to_string(to.*value));
  };
  number("parallel.tp", &LayoutChoice::tp);
  number("parallel.cp", &LayoutChoice::cp);
  number("parallel.pp", &LayoutChoice::pp);
  if (from.dp != to.dp && !keys.empty()) keys.back() += ", parallel.dp: " + std::to_string(to.dp);
  number("parallel.ep", &LayoutChoice::ep);
  number("parallel.etp", &LayoutChoice::etp);
  number("parallel.zero", &LayoutChoice::zero);
  number("parallel.zero_group", &LayoutChoice::zero_group);
  number("parallel.bucket_bytes", &LayoutChoice::bucket_bytes);
  if (from.sequence_parallel != to.sequence_parallel)
    keys.push_back(std::string("parallel.sequence_parallel: ") + (to.sequence_parallel ? "true" : "false"));
  number("batch.micro", &LayoutChoice::micro);
  if (from.schedule != to.schedule)
    keys.push_back(std::string("parallel.schedule: ") + parallel::to_string(to.schedule));
  if (from.virtual_stages != to.virtual_stages) {
    const std::string chunks = "parallel.virtual_stages: " + std::to_string(to.virtual_stages);
    // Listed with the schedule.
    if (from.schedule != to.schedule) keys.back() += ", " + chunks;
    else keys.push_back(chunks);
  }
  if (!(from.recompute == to.recompute)) keys.push_back("recompute: {kind: " + text(to.recompute) + "}");
  return keys;
}

std::size_t changes(const LayoutChoice& a, const LayoutChoice& b) {
  const bool chunks = a.schedule != b.schedule || a.virtual_stages != b.virtual_stages;
  return static_cast<std::size_t>((a.tp != b.tp) + (a.cp != b.cp) + (a.pp != b.pp) + (a.ep != b.ep) +
                                  (a.etp != b.etp) + (a.zero != b.zero) + (a.zero_group != b.zero_group) +
                                  (a.bucket_bytes != b.bucket_bytes) +
                                  (a.sequence_parallel != b.sequence_parallel) + (a.micro != b.micro) +
                                  chunks + !(a.recompute == b.recompute));
}

std::vector<LayoutChoice> all_layouts(const job::JobSpec& job, const parallel::Topology& topology,
                                      const LayoutSpace& space) {
  return Enumerator(job, topology, space).all();
}

}  // namespace trainerd::core::plan
