#include "io/checkpoint/tiers.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "io/checkpoint/files.h"
#include "io/checkpoint/folders.h"
#include "io/storage/file_errors.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

struct Candidate {
  StoredCheckpoint where;
  const CheckpointStore* store = nullptr;
};

/// A checkpoint that exists but could not be read.
struct Unread {
  std::int64_t step = 0;
  std::string problem;
};

std::string place_of(const CheckpointStore& store) { return store.storage()->path_of(""); }

std::string newest_text(const std::vector<StoredCheckpoint>& list) {
  return list.empty() ? "holds none" : "has step " + std::to_string(list.front().step);
}

// Returns the owner; empty if there is none. A file left incomplete by a kill lacks the end of its last line
// and counts as none.
std::string owner_of(const Storage& tier) {
  if (!tier.exists(kOwnerFile)) return "";
  std::string text = read_text(tier, kOwnerFile);
  return text.ends_with("\"\n") ? text : "";
}

void throw_if_older(const std::optional<Unread>& unread, std::int64_t step) {
  if (unread && step < unread->step)
    throw base::checkpoint_error(
        unread->problem +
        "; the newest checkpoint is not replaced by an older one for an error of the file system or store");
}

}  // namespace

std::optional<TierChoice> newest_of_tiers(
    const CheckpointStore& own, const CheckpointStore& durable,
    const std::function<void(const std::string& path, const std::string& why)>& rejected) {
  const std::vector<StoredCheckpoint> here = own.list_attempts();
  std::vector<StoredCheckpoint> there;
  std::string unreachable;
  try {
    there = durable.list_attempts();
  } catch (const base::CheckpointError& error) {
    unreachable = error.what();
  }
  std::vector<Candidate> candidates;
  for (const StoredCheckpoint& where : here) candidates.push_back({where, &own});
  for (const StoredCheckpoint& where : there) candidates.push_back({where, &durable});
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.where.step > b.where.step; });
  std::optional<Unread> unread;
  for (const Candidate& candidate : candidates) {
    throw_if_older(unread, candidate.where.step);
    try {
      TierChoice choice{
          .found = {candidate.where, verify_checkpoint(*candidate.store->folder(candidate.where.name()))}};
      for (const StoredCheckpoint& other : there)
        if (const auto folder = parse_folder(other.name()))
          choice.next_attempts[folder->step] =
              std::max(choice.next_attempts[folder->step], folder->attempt + 1);
      choice.durable = candidate.store == &durable;
      choice.in_both = std::any_of(there.begin(), there.end(), [&](const StoredCheckpoint& other) {
        return other.step == candidate.where.step;
      });
      if (choice.durable) choice.why = place_of(own) + " " + newest_text(here);
      else if (unreachable.empty())
        choice.why = "the durable tier " + place_of(durable) + " " + newest_text(there);
      if (!unreachable.empty())
        choice.warning = "the durable tier " + place_of(durable) +
                         " cannot be looked at: the run goes on from step " +
                         std::to_string(candidate.where.step) + " of " + place_of(own) +
                         ", and the tier may hold a newer checkpoint if that could not be written or the run "
                         "went on elsewhere: " +
                         unreachable;
      return choice;
    } catch (const StorageError& error) {
      if (!is_absence(error.error_number)) {
        if (!unread) unread = {candidate.where.step, error.what()};
        continue;
      }
      if (rejected) rejected(candidate.where.path, error.what());
    } catch (const base::CheckpointError& error) {
      if (rejected) rejected(candidate.where.path, error.what());
    }
  }
  throw_if_older(unread, -1);
  if (!unreachable.empty())
    throw base::checkpoint_error(
        "the durable tier " + place_of(durable) + " cannot be looked at, and the run's directory " +
        place_of(own) +
        " holds no checkpoint that is whole: nothing begins at step 1 while the tier "
        "may hold checkpoints. Make it reachable, or take checkpoint.durable.to out "
        "of the job: " +
        unreachable);
  if (candidates.empty()) return std::nullopt;
  throw base::checkpoint_error(fmt::format(
      "{} and {}: none of their {} checkpoints is whole; restore one, or begin anew with --fresh, "
      "which moves the output aside, and another checkpoint.durable.to",
      place_of(own), place_of(durable), candidates.size()));
}

std::string tier_owner(const std::string& job, const std::string& output) {
  const std::filesystem::path path = std::filesystem::absolute(local_path(output)).lexically_normal();
  return "job \"" + job + "\", output \"" + (path.has_filename() ? path : path.parent_path()).string() +
         "\"\n";
}

void require_tier_of(const Storage& tier, const std::string& owner) {
  const std::string found = owner_of(tier), file = tier.path_of(kOwnerFile);
  if (found.empty() || found == owner) return;
  throw base::spec_error("the durable tier " + tier.path_of("") + " is another run's: " + file + " names " +
                         found.substr(0, found.size() - 1) + ", and this is " +
                         owner.substr(0, owner.size() - 1) +
                         ". Set checkpoint.durable.to to a place of this run alone; if it is the same run "
                         "under another name or output, remove that file");
}

void claim_tier(Storage& tier, const std::string& owner) {
  require_tier_of(tier, owner);
  if (!owner_of(tier).empty()) return;
  tier.make_folder("");
  tier.remove(kOwnerFile);  // removes a file left incomplete by a kill
  tier.write(kOwnerFile, bytes_of(owner));
  tier.sync_folder("");
  require_tier_of(tier, owner);  // another run may have claimed it at the same time
}

}  // namespace trainerd::io
