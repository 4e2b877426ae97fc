#include <algorithm>
#include <utility>

#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "io/text/text.h"
#include "kernels/base/error.h"
#include "kernels/base/socket.h"

// Part of the run (run.h): copies of snapshots in another node's memory. The leader names the steps that all
// nodes send, one at a time, so that there is a step whose copies of all nodes are kept. When a node other
// than the leader's is lost, the others end their ranks and wait until its agent is started again.

namespace trainerd::core::run {

void Run::begin_partner() {
  if (!job_.checkpoint.partner || membership_.alone()) return;
  const std::int64_t domain = topology_.nvlink_domain / std::max<std::int64_t>(1, topology_.devices_per_node);
  const std::int64_t node = membership_.node(), partner = partner_of(node, membership_.nodes(), domain);
  partner_ = std::make_unique<Partner>(Partner::Options{.node = node,
                                                        .partner = partner,
                                                        .store = membership_.store(),
                                                        .address = base::own_address(membership_.interface()),
                                                        .token = membership_.token()});
  meet_partner(attempt_->number());
  log::info("{} keeps a copy of this node's snapshots", membership_.name_of(partner));
}

/// A snapshot is complete on this node. Sends it to the partner if its step is the one to send.
void Run::copy_held(std::int64_t step, SnapshotUse use) {
  const HeldStep& held = *snapshots_->find(step);
  if (use == SnapshotUse::memory) keep_taken(step, held.segments, true);
  if (membership_.leads()) {
    // No copy is begun that could not arrive before the end of the run.
    if (!copied_step_ && !partner_->sending() && !stop_ && step < job_.steps && !attempt_->failure()) {
      copied_step_ = step;
      copy_missing_ = false;
      for (std::int64_t node = 0; node < membership_.nodes(); ++node) copying_.insert(node);
      keep_copies(kept_by_all_, step);
      membership_.send(CopySnapshot{step, attempt_->number(), kept_by_all_});
      send_copy(held);
    }
  } else if (wanted_copy_ && *wanted_copy_ <= step) {
    const std::int64_t wanted = *std::exchange(wanted_copy_, std::nullopt);
    if (wanted == step && !partner_->sending()) send_copy(held);
    else membership_.send(SnapshotCopied{wanted, attempt_->number(), false});
  }
  free_kept();
}

void Run::send_copy(const HeldStep& held) {
  sent_step_ = held.step;
  partner_->send(copy_of(held), kept_by_all_);
}

/// Marks these segments as not to be filled. The step may already have them for another reason.
void Run::keep_taken(std::int64_t step, const std::vector<std::int64_t>& segments, bool until_newer) {
  Kept& kept = kept_[step];
  if (!kept.segments.empty() && kept.segments != segments) attempt_->send_saved(kept.segments);
  kept = {.segments = segments,
          .until_newer = until_newer || (kept.segments == segments && kept.until_newer)};
}

/// Takes the segments of the last step that all partners keep, and of the next one. If a node is lost, it
/// begins from its partner's copy, and this node needs its own snapshot of the same step.
void Run::keep_copies(std::int64_t kept_by_all, std::int64_t next) {
  kept_by_all_ = kept_by_all;
  std::erase_if(copies_, [&](std::int64_t step) { return step != kept_by_all; });
  copies_.insert(next);
  forget_survived(kept_by_all >= 0);
  free_kept();
}

/// True if no rank may fill the step's segments.
bool Run::taken(const HeldStep& held) const {
  const auto kept = kept_.find(held.step);
  const auto saving = saving_.find(held.step);
  return (kept != kept_.end() && kept->second.segments == held.segments) ||
         (saving != saving_.end() && saving->second.segments == held.segments);
}

void Run::on_partner() {
  const std::optional<Partner::Sent> sent = partner_->take();
  if (!sent) return;
  const bool kept = sent->problem.empty();
  sent_step_.reset();
  sinks_.each(&io::MetricsSink::on_partner_copy,
              io::PartnerCopyRecord{
                  .step = sent->step, .bytes = sent->bytes, .seconds = sent->seconds, .kept = kept});
  // A lost node and the end of the run are reported elsewhere.
  if (!kept && !attempt_->failure() && !next_ && !attempt_->all_finished_here() &&
      !std::exchange(copies_fail_, true))
    notify(io::NoticeKind::warning, "the snapshot of step " + std::to_string(sent->step) +
                                        " did not reach this node's partner: " + sent->problem +
                                        "; the next one is tried");
  if (kept && std::exchange(copies_fail_, false))
    notify(io::NoticeKind::warning, "snapshots reach this node's partner again");
  free_kept();
  const SnapshotCopied done{sent->step, attempt_->number(), kept};
  if (membership_.leads()) copied(membership_.node(), done);
  else membership_.send(done);
}

/// A node has sent its copy, or failed to. When all nodes have, the next step can be sent.
void Run::copied(std::int64_t node, const SnapshotCopied& m) {
  if (m.attempt != attempt_->number() || copied_step_ != m.step) return;
  copying_.erase(node);
  copy_missing_ = copy_missing_ || !m.kept;
  if (!copying_.empty()) return;
  if (!copy_missing_) kept_by_all_ = m.step;
  copied_step_.reset();
}

/// Releases the segments that nothing needs any more.
void Run::free_kept() {
  const HeldStep* newest = snapshots_->held().empty() ? nullptr : &snapshots_->held().back();
  std::erase_if(kept_, [&](const auto& entry) {
    const auto& [step, kept] = entry;
    if (sent_step_ == step || copies_.contains(step)) return false;
    if (kept.until_newer && newest != nullptr && newest->step == step && newest->segments == kept.segments)
      return false;
    const auto saving = saving_.find(step);
    if (saving == saving_.end() || saving->second.segments != kept.segments)
      attempt_->send_saved(kept.segments);
    return true;
  });
}

/// Prepares for the next attempt: steps after its first will be done again.
void Run::forget_copies(const Go& go) {
  constexpr std::int64_t kNone = -1;
  meet_partner(go.attempt);
  partner_->drop_after(go.from_memory ? go.step : kNone);
  copied_step_.reset();
  wanted_copy_.reset();
  copying_.clear();
  // A node that has come back keeps nothing for others.
  const bool valid = go.from_memory && go.fetch.empty() && go.sources.empty();
  if (!valid || kept_by_all_ > go.step) kept_by_all_ = kNone;
  std::erase_if(copies_, [&](std::int64_t step) { return !valid || step > go.step; });
  // The workers that the other segments were taken for are gone.
  std::erase_if(
      kept_, [&](const auto& entry) { return sent_step_ != entry.first && !copies_.contains(entry.first); });
  for (auto& [step, kept] : kept_) kept.until_newer = false;
}

std::vector<HeldCopy> Run::held_copies() const {
  std::vector<HeldCopy> copies;
  if (!partner_) return copies;
  for (const NodeCopy& copy : partner_->kept())
    copies.push_back({copy.node, copy.step, copy.cursor, copy.tokens, copy.self_contained()});
  return copies;
}

/// The newest step whose state every node has in memory, its own or a partner's. Without a node that was lost
/// that is no step of all ranks, which NodeSnapshots keeps from being overwritten: then only those count that
/// were taken when the ranks ended.
std::optional<InMemory> Run::newest_in_memory(bool without_node) const {
  const std::int64_t trusted = trusted_step();
  if (membership_.alone()) {
    for (auto held = snapshots_->held().rbegin(); held != snapshots_->held().rend(); ++held)
      if (held->step <= trusted) return InMemory{held->step, held->cursor, held->tokens, {}};
    return std::nullopt;
  }
  std::vector<HeldCopy> copies = held_copies();
  for (const auto& [node, held] : held_) copies.insert(copies.end(), held.copies.begin(), held.copies.end());
  const auto has_own = [&](std::int64_t node, std::int64_t step) {
    if (node == membership_.node()) {
      const HeldStep* own = snapshots_->find(step);
      return own != nullptr && snapshots_->self_contained() && (!without_node || taken(*own));
    }
    const auto held = held_.find(node);
    if (held == held_.end() || !held->second.self_contained) return false;
    const std::vector<std::int64_t>& own = without_node ? held->second.taken : held->second.steps;
    return std::find(own.begin(), own.end(), step) != own.end();
  };
  const auto has_copy = [&](std::int64_t node, std::int64_t step) {
    return std::any_of(copies.begin(), copies.end(), [&](const HeldCopy& copy) {
      return copy.node == node && copy.step == step && copy.self_contained;
    });
  };
  std::map<std::int64_t, InMemory> steps;  // steps that this node's ranks can begin from
  for (const HeldStep& held : snapshots_->held())
    steps[held.step] = {held.step, held.cursor, held.tokens, {}};
  for (const HeldCopy& copy : copies)
    if (copy.node == membership_.node()) steps[copy.step] = {copy.step, copy.cursor, copy.tokens, {}};
  for (auto at = steps.rbegin(); at != steps.rend(); ++at) {
    InMemory found = at->second;
    bool all = found.step <= trusted;
    for (std::int64_t node = 0; all && node < membership_.nodes(); ++node) {
      if (has_own(node, found.step)) continue;
      all = has_copy(node, found.step);
      found.fetch.push_back(node);
    }
    if (all) return found;
  }
  return std::nullopt;
}

/// This node's snapshots of the step that all nodes begin from, fetched from its partner if `go` says so.
/// Null if they cannot be fetched; the attempt has then failed.
const HeldStep* Run::held_for(const Go& go) {
  if (!go.sources.empty()) {
    if (!gather(go)) return nullptr;
    // No rank overwrites its own part before all have loaded theirs.
    const HeldStep* own = snapshots_->find(go.step);
    if (own != nullptr) keep_taken(go.step, own->segments, true);
    return own;
  }
  const bool own = std::find(go.fetch.begin(), go.fetch.end(), membership_.node()) == go.fetch.end();
  try {
    const HeldStep* held = own ? snapshots_->find(go.step) : fetch(go);
    // This agent may have joined after the leader chose the step.
    if (held == nullptr) throw base::comm_error("this agent does not hold it");
    if (go.fetch.empty()) return held;
    // Until there are newer copies, this step can bring that node back once more.
    kept_by_all_ = go.step;
    copies_ = {go.step};
    keep_taken(go.step, held->segments, false);
    return held;
  } catch (const base::CommError& error) {
    without_memory_ = true;
    if (!membership_.leads()) membership_.send(FetchFailed{go.step, attempt_->number()});
    fail({base::ErrorKind::comm,
          (membership_.leads() ? membership_.name_of(0) + ": " : "") + "its snapshot of step " +
              std::to_string(go.step) + " did not come back from its partner: " + error.what() +
              "; see the log of the partner's agent and the network between the two",
          1, true});
    return nullptr;
  }
}

const HeldStep* Run::fetch(const Go& go) {
  const double start = base::monotonic_seconds();
  base::check(partner_ != nullptr, "a node without a partner has its own snapshots");
  const NodeCopy copy = partner_->fetch(go.step);
  const NodeRanks& here = attempt_->plan().here;
  base::check(std::cmp_equal(copy.ranks.size(), here.count), "a copy is of this node's ranks");
  HeldStep held{.step = copy.step,
                .cursor = copy.cursor,
                .tokens = copy.tokens,
                .segments = {},
                .bytes = {},
                .attempt = copy.attempt};
  for (std::int64_t i = 0; i < here.count; ++i) {
    const std::int64_t rank = here.first + i;
    const auto place = static_cast<std::size_t>(i);
    const std::vector<std::int64_t> busy = busy_segments(place);
    std::int64_t segment = 0;
    while (std::find(busy.begin(), busy.end(), segment) != busy.end()) ++segment;
    const auto bytes =
        copy.ranks[place].memory->bytes().first(static_cast<std::size_t>(copy.ranks[place].bytes));
    const std::span<std::byte> room = snapshots_->segment(rank, segment)->bytes();
    base::check(bytes.size() <= room.size(), "a copy is as large as the ranks' snapshots");
    std::copy(bytes.begin(), bytes.end(), room.begin());
    snapshots_->describe(rank, copy.ranks[place].slices, copy.ranks[place].borrowed);
    held.segments.push_back(segment);
    held.bytes.push_back(copy.ranks[place].bytes);
  }
  log::info("the partner gave back the snapshots of step {}: {} in {}", copy.step,
            io::short_bytes(copy.bytes()), io::short_duration(base::monotonic_seconds() - start));
  snapshots_->add(std::move(held));
  return snapshots_->find(go.step);
}

}  // namespace trainerd::core::run
