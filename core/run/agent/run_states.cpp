#include <fmt/format.h>

#include <poll.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <utility>

#include "core/rank/device_rank.h"
#include "core/rank/dry_run.h"
#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "core/spec/spec.h"
#include "core/train/snapshot.h"
#include "io/text/text.h"
#include "kernels/base/error.h"
#include "kernels/base/socket.h"

// Part of the run (run.h): snapshots in the memory of agents, from which ranks begin in another layout, under
// another leader, or where their own node has nothing. The leader asks all agents what they hold and names
// who gives what; each agent gathers what its own ranks need.

namespace trainerd::core::run {
namespace {

// How long agents have to say what they hold. One that is lost meanwhile is not waited for.
constexpr double kHoldingsSeconds = 10;

/// "the snapshots of step 40 in the memory of node 0 and node 2".
std::string text_of(const StateCut& cut, const std::vector<StateSource>& sources) {
  std::set<std::int64_t> nodes;
  for (const StateSource& source : sources) nodes.insert(source.from);
  std::string names;
  std::size_t left = nodes.size();
  for (const std::int64_t node : nodes)
    names += fmt::format("node {}{}", node, --left == 0 ? "" : (left == 1 ? " and " : ", "));
  return fmt::format("the snapshots of step {} in the memory of {}", cut.step, names);
}

/// Every tensor of a checkpoint of the job, whole, by a dry run of the job on one rank.
std::vector<io::TensorSlice> whole_state(const job::JobSpec& job, const parallel::Topology& topology) {
  job::JobSpec alone = job;
  alone.parallel = {};
  alone.attention.require = job::AttentionRequire::any;  // one rank may be asked for what the job's never are
  alone.cluster.nodes = 1;
  return rank::dry_run(alone, rank::layout_of(alone, topology), 0, topology.device).state;
}

/// The boxes that some ranks need, by tensor.
class Needs {
 public:
  explicit Needs(const std::vector<rank::DryRun>& ranks) {
    for (const rank::DryRun& rank : ranks)
      for (const io::TensorSlice& box : rank.state) boxes_[box.name].push_back(box);
  }
  bool any_of(const std::vector<io::TensorSlice>& slices) const {
    return std::any_of(slices.begin(), slices.end(), [&](const io::TensorSlice& slice) {
      const auto of = boxes_.find(slice.name);
      return of != boxes_.end() && std::any_of(of->second.begin(), of->second.end(),
                                               [&](const auto& box) { return io::overlap(box, slice); });
    });
  }
  /// Throws CommError naming a tensor that the shards do not hold.
  void require(const std::vector<HeldShard>& shards) const {
    std::map<std::string, std::vector<io::TensorSlice>> held;
    for (const HeldShard& shard : shards)
      for (const io::TensorSlice& slice : shard.slices) held[slice.name].push_back(slice);
    for (const auto& [name, boxes] : boxes_)
      for (const io::TensorSlice& box : boxes)
        if (!io::covers(held[name], box)) throw base::comm_error("no agent has all of " + name);
  }

 private:
  std::map<std::string, std::vector<io::TensorSlice>> boxes_;
};

}  // namespace

std::string to_text(const Go& go) { return text_of(go.cut, go.sources); }

io::TrainingState Run::training_state(std::int64_t step, std::int64_t cursor, std::int64_t tokens) const {
  io::TrainingState state{step, cursor, tokens, job_.seed, train::checkpoint_identity(job_), environment_};
  if (!start_.reference.empty()) state.identity[kReferenceEntry] = start_.reference;
  state.job = spec::to_yaml(job_);
  state.origin = hf::to_text(origin_);
  record_data(data_, {start_.order, gone_sources_}, state);
  return state;
}

/// A snapshot of this node's ranks, as other agents get it.
NodeCopy Run::copy_of(const HeldStep& held) const {
  const NodeRanks& here = attempt_->plan().here;
  NodeCopy copy{membership_.node(), held.step, held.cursor, held.tokens, {}, held.attempt};
  for (std::int64_t i = 0; i < here.count; ++i) {
    const std::int64_t rank = here.first + i;
    const auto place = static_cast<std::size_t>(i);
    copy.ranks.push_back({.slices = snapshots_->slices(rank),
                          .borrowed = snapshots_->borrowed(rank),
                          .bytes = held.bytes.at(place),
                          .xxh3 = {},
                          .memory = snapshots_->segment(rank, held.segments.at(place))});
  }
  return copy;
}

/// What this agent has: of this run's attempts, and of the sizes and leads before.
std::vector<HeldState> Run::held_states() const {
  std::vector<HeldState> states = series_.survived;
  const std::string& run = membership_.go().run;
  if (!snapshots_ || run.empty()) return states;
  const auto add = [&](NodeCopy copy, bool taken, bool own) {
    const StateCut cut{run, copy.attempt, copy.step, copy.cursor, copy.tokens};
    states.push_back({.cut = cut,
                      .taken = taken,
                      .own = own,
                      .head = io::to_json(training_state(copy.step, copy.cursor, copy.tokens), {}),
                      .copy = std::move(copy)});
  };
  for (const HeldStep& held : snapshots_->held()) add(copy_of(held), taken(held), true);
  if (partner_)
    for (NodeCopy& copy : partner_->kept()) add(std::move(copy), true, false);
  return states;
}

/// They are kept when this run ends and another size or lead goes on. A run that goes back to an earlier
/// checkpoint keeps none.
void Run::keep_states() { series_.survived = rollback_ ? std::vector<HeldState>{} : held_states(); }

/// Newer snapshots make them needless.
void Run::forget_survived(bool newer_are_safe) {
  if (!newer_are_safe) return;
  series_.survived.clear();
  if (surviving_.exchange) surviving_.exchange->offer({});  // it holds their memory too
}

/// Frees the states that the ranks do not begin from, before the memory of new snapshots is taken.
void Run::keep_only(const StateCut& cut, bool begins_from_it) {
  std::erase_if(series_.survived,
                [&](const HeldState& state) { return !begins_from_it || state.cut != cut; });
}

void Run::begin_exchange() {
  if (membership_.alone() || job_.restarts == 0) return;
  surviving_.exchange = std::make_unique<StateExchange>(
      StateExchange::Options{.node = membership_.node(),
                             .store = membership_.store(),
                             .address = base::own_address(membership_.interface()),
                             .token = membership_.token()});
  surviving_.exchange->offer(held_states());
}

/// Agents find each other by the leader's store.
void Run::meet_exchange(std::int64_t attempt) {
  if (!surviving_.exchange) return;
  try {
    surviving_.exchange->begin(attempt);
  } catch (const base::CommError& error) {
    if (membership_.leads() || !membership_.coordinated()) throw;
    membership_.lose_leader(membership_.name_of(0) + " was lost: " + error.what());
  }
}

void Run::on_message(std::int64_t, const ShowState& m) {
  const std::vector<HeldState> states = held_states();
  if (surviving_.exchange) surviving_.exchange->offer(states);
  for (const StateShown& part : shown_states(m.number, states)) membership_.send(part);
}

void Run::on_message(std::int64_t node, StateShown m) {
  if (m.number != surviving_.question) return;
  for (StateOffer& offer : m.offers) surviving_.shown.push_back({node, std::move(offer)});
  if (m.last) surviving_.asked.erase(node), surviving_.answered.insert(node);
}

/// The leader's: asks all agents, and waits for their answers by `turn`, which handles what comes for so many
/// seconds at the most. Of the states that together are whole, up to `most_step`, the newest.
std::optional<StateChoice> Run::choose_in_memory(std::int64_t most_step, const Turn& turn) {
  surviving_.shown.clear();
  surviving_.asked.clear();
  surviving_.answered.clear();
  ++surviving_.question;
  for (std::int64_t node = 1; node < membership_.nodes(); ++node)
    if (membership_.is_there(node)) surviving_.asked.insert(node);
  membership_.send(ShowState{surviving_.question});
  const std::vector<HeldState> own = held_states();
  if (surviving_.exchange) surviving_.exchange->offer(own);
  for (StateShown& part : shown_states(surviving_.question, own)) on_message(0, std::move(part));
  const double end = base::monotonic_seconds() + kHoldingsSeconds;
  while (!surviving_.asked.empty() && !killed_ && !lost_node_ && base::monotonic_seconds() < end) {
    turn(end - base::monotonic_seconds());
    std::erase_if(surviving_.asked, [&](std::int64_t node) { return !membership_.is_there(node); });
  }
  // Half an answer would hide an agent's newest states; one that is lost can give none.
  std::erase_if(surviving_.shown, [&](const ShownOffer& shown) {
    return shown.from != membership_.node() &&
           (!surviving_.answered.contains(shown.from) || !membership_.is_there(shown.from));
  });
  if (surviving_.shown.empty()) return std::nullopt;
  return choose_state(surviving_.shown, whole_state(job_, topology_), most_step);
}

/// For a run that begins after another size or another leader: where it goes on without a checkpoint. None
/// where a checkpoint on the disk is newer, or the records do not reach as far.
std::optional<io::CheckpointStore::Found> Run::find_in_memory() {
  const std::int64_t recorded = output_.last_whole_step();
  const std::int64_t trusted = std::exchange(series_.trusted_step, std::numeric_limits<std::int64_t>::max());
  const auto choice = choose_in_memory(std::min({recorded, job_.steps - 1, trusted}),
                                       [this](double seconds) { wait_for_news(seconds); });
  if (!choice) return std::nullopt;
  const std::vector<io::StoredCheckpoint> on_disk = store_.list();
  const std::int64_t newest = on_disk.empty() ? 0 : on_disk.front().step;
  if (choice->cut.step < newest) {
    log::info("the checkpoint of step {} is newer than what is in memory, step {}", newest, choice->cut.step);
    return std::nullopt;
  }
  last_good_ = on_disk.empty() ? "none" : on_disk.front().path;
  surviving_.disk_step = newest;
  const auto offer = std::find_if(surviving_.shown.begin(), surviving_.shown.end(), [&](const ShownOffer& s) {
    return s.offer.cut == choice->cut && !s.offer.head.empty();
  });
  base::check(offer != surviving_.shown.end(), "a state is offered with its head");
  surviving_.begun_with.cut = choice->cut;
  surviving_.begun_with.sources = choice->sources;
  surviving_.begun_with.from_memory = true;
  surviving_.begun_with.step = choice->cut.step;
  io::CheckpointStore::Found found;
  found.manifest = io::parse_manifest(offer->offer.head);
  found.where = {.step = choice->cut.step, .path = to_text(surviving_.begun_with)};
  return found;
}

/// Before the run begins: what comes of states is handled, all else later.
void Run::wait_for_news(double seconds) {
  std::vector<pollfd> fds;
  membership_.watch(fds);
  if (::poll(fds.data(), fds.size(), static_cast<int>(1000 * std::min(seconds, 1.0)) + 1) < 0) return;
  membership_.works();
  for (Membership::Event& event : membership_.take(fds)) {
    StateShown* shown = event.message ? std::get_if<StateShown>(&*event.message) : nullptr;
    if (shown != nullptr) on_message(event.node, std::move(*shown));
    else surviving_.deferred.push_back(std::move(event));
  }
}

/// What this node's ranks begin from, brought here from the agents that the leader names. False: the attempt
/// has failed, since it cannot be.
bool Run::gather(const Go& go) {
  const double start = base::monotonic_seconds();
  const std::vector<HeldState> own = held_states();
  if (surviving_.exchange) surviving_.exchange->offer(own);
  const Needs needs(attempt_->plan().ranks.here);
  const auto wanted = [&](const std::vector<io::TensorSlice>& slices) { return needs.any_of(slices); };
  Gathered gathered;
  std::int64_t fetched = 0;
  const auto add = [&](const NodeCopy& copy) {
    for (const NodeCopy::Rank& rank : copy.ranks) {
      if (!wanted(rank.slices)) continue;
      gathered.shards.push_back({rank.bytes, rank.slices});
      gathered.memory.push_back(rank.memory);
    }
  };
  try {
    for (const StateSource& source : go.sources) {
      if (source.from == membership_.node()) {
        const auto held = std::find_if(own.begin(), own.end(), [&](const HeldState& state) {
          return state.cut == go.cut && state.copy.node == source.of && state.own != source.copy;
        });
        if (held == own.end())
          throw base::comm_error("node " + std::to_string(source.from) + " has no snapshot of step " +
                                 std::to_string(go.step) + " of node " + std::to_string(source.of));
        add(held->copy);
      } else {
        base::check(surviving_.exchange != nullptr, "a node alone has all of its state");
        const NodeCopy copy = surviving_.exchange->fetch(go.cut, source, wanted);
        fetched += copy.bytes();
        add(copy);
      }
    }
    needs.require(gathered.shards);
  } catch (const base::Error& error) {
    const bool memory = error.kind() == base::ErrorKind::capacity;  // not enough for what others have
    if (!memory && error.kind() != base::ErrorKind::comm) throw;
    without_memory_ = true;
    if (!membership_.leads()) membership_.send(FetchFailed{go.step, attempt_->number()});
    fail({base::ErrorKind::comm,
          membership_.name_of(membership_.node()) + ": its ranks' state of step " + std::to_string(go.step) +
              " cannot be gathered from the agents that had it: " + error.what(),
          1, true});
    return false;
  }
  // No other state counts from here on.
  keep_only(go.cut, true);
  for (HeldState& state : series_.survived) state.taken = true;
  log::info("the ranks begin from {}: {} of it came from other nodes, in {}", to_text(go),
            io::short_bytes(fetched), io::short_duration(base::monotonic_seconds() - start));
  surviving_.gathered = std::move(gathered);
  return true;
}

}  // namespace trainerd::core::run
