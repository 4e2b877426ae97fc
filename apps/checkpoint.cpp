#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/nodes.h"
#include "apps/output.h"
#include "core/reshard/reshard.h"
#include "io/checkpoint/compare.h"
#include "io/checkpoint/report.h"
#include "io/s3_storage/s3_storage.h"
#include "io/text/counted.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

std::string sizes(const std::vector<std::int64_t>& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

/// Opens paths at s3://.
io::OpenRemote remote_here() {
  return io::remote_storages([] { return io::s3_settings(process_environment); });
}

/// Returns at least one complete checkpoint. Else throws CheckpointError that names the incomplete ones.
io::CheckpointsAt some_checkpoints(const std::string& path) {
  io::CheckpointsAt found = io::checkpoints_at(path, remote_here());
  if (!found.complete.empty()) return found;
  std::string text = "no complete checkpoint in " + path;
  for (const io::StoredCheckpoint& stored : found.incomplete)
    text += "\n" + stored.path + " has no file COMPLETE: it was never finished";
  throw base::checkpoint_error(text);
}

std::string show_text(const io::Verified& checkpoint, const io::Statistics& statistics) {
  const io::Manifest& manifest = *checkpoint.manifest;
  std::string text = "step    " + std::to_string(manifest.state.step) + "\ncursor  " +
                     std::to_string(manifest.state.cursor) + " samples\ntokens  " +
                     std::to_string(manifest.state.tokens) + "\nseed    " +
                     std::to_string(manifest.state.seed) + "\n";
  for (const auto& [key, value] : manifest.state.identity) text += key + ": " + value + "\n";
  for (const auto& [key, value] : manifest.state.environment) text += key + ": " + value + "\n";
  for (const io::ShardInfo& shard : manifest.shards)
    text += shard.file + ": " + std::to_string(shard.bytes) + " bytes, xxh3 " + shard.xxh3 + "\n";
  for (const io::TensorSummary& tensor : io::tensors_of(manifest)) {
    text += tensor.name + "  " + kernels::name_of(tensor.dtype) + "  " + sizes(tensor.shape) +
            (tensor.parts == 1 ? "" : "  in " + std::to_string(tensor.parts) + " parts");
    if (const auto found = statistics.find(tensor.name); found != statistics.end())
      text += fmt::format(
          "  least {:.6g}, most {:.6g}, mean {:.6g}, rms {:.6g}{}", found->second.least, found->second.most,
          found->second.mean, found->second.root_mean_square,
          found->second.not_finite == 0 ? "" : fmt::format(", {} not finite", found->second.not_finite));
    text += "\n";
  }
  return text;
}

io::Statistics statistics_of(const std::string& path) {
  io::CheckpointReader reader(path, remote_here());
  io::Statistics all;
  for (const io::TensorSlice& tensor : io::whole_tensors(reader.manifest()))
    all.emplace(tensor.name, io::statistics_of(reader, tensor));
  return all;
}

/// The checkpoint's directory; for a run, that of its newest checkpoint.
std::string newest_at(const std::string& path) { return some_checkpoints(path).complete.front().path; }

std::string difference_text(const io::TensorDifference& d) {
  if (!d.problem.empty()) return d.name + ": " + d.problem;
  std::string at;
  for (const std::int64_t i : d.at) at += (at.empty() ? "" : ", ") + std::to_string(i);
  return fmt::format("{}: {} of {} elements differ, by at most {:.3g} at [{}], relative error {:.3g}", d.name,
                     d.unequal, d.elements, d.largest, at, d.relative);
}

/// A difference in shape or dtype ranks above any numeric difference.
bool is_less(const io::TensorDifference& a, const io::TensorDifference& b) {
  return std::pair(!a.problem.empty(), a.relative) < std::pair(!b.problem.empty(), b.relative);
}

std::string made_text(const core::reshard::Made& made) {
  return fmt::format("{}: step {}, {}, {} bytes{}{}\n", made.path, made.step,
                     io::counted(made.shards, "shard"), made.bytes, made.layout.empty() ? "" : ", ",
                     made.layout);
}

}  // namespace

int checkpoint_list_command(const CheckpointArgs& args) {
  const io::CheckpointsAt found = io::checkpoints_at(args.path, remote_here());
  if (args.json) return print(io::list_json(found)), 0;
  std::string text;
  for (const io::StoredCheckpoint& stored : found.complete)
    text += "step " + std::to_string(stored.step) + "  " + stored.path + (stored.good ? "  good\n" : "\n");
  if (text.empty()) text = "no complete checkpoint in " + args.path + "\n";
  for (const io::StoredCheckpoint& stored : found.incomplete)
    text += "step " + std::to_string(stored.step) + "  " + stored.path + "  incomplete: no file COMPLETE\n";
  print(text);
  return 0;
}

int checkpoint_verify_command(const CheckpointArgs& args) {
  std::vector<io::Verified> all;
  std::string text, problems;
  for (const io::StoredCheckpoint& stored : some_checkpoints(args.path).complete) {
    const io::Verified& one = all.emplace_back(io::verified(stored, remote_here()));
    if (one.manifest) {
      text += stored.path + ": complete: step " + std::to_string(one.manifest->state.step) + ", " +
              io::counted(static_cast<std::int64_t>(one.manifest->shards.size()), "shard") + ", " +
              std::to_string(io::bytes_of(*one.manifest)) + " bytes, checksums OK\n";
    } else {
      problems += (problems.empty() ? "" : "\n") + one.problem;
    }
  }
  print(args.json ? io::verify_json(all) : text);
  if (!problems.empty()) throw base::checkpoint_error(problems);
  return 0;
}

int checkpoint_show_command(const CheckpointArgs& args) {
  const io::Verified newest = io::verified(some_checkpoints(args.path).complete.front(), remote_here());
  if (!newest.manifest) throw base::checkpoint_error(newest.problem);
  const io::Statistics statistics = args.statistics ? statistics_of(newest.where.path) : io::Statistics{};
  print(args.json ? io::show_json(newest, statistics) : show_text(newest, statistics));
  return 0;
}

int checkpoint_diff_command(const CheckpointArgs& args) {
  io::CheckpointReader first(newest_at(args.path), remote_here()),
      second(newest_at(args.second), remote_here());
  const io::Comparison found = io::compare_checkpoints(first, second, args.tolerance);
  const std::vector<io::TensorDifference>& different = found.different;
  if (args.json) {
    print(io::diff_json(found));
  } else if (different.empty()) {
    print(fmt::format("{} tensors are equal{}\n", found.tensors,
                      args.tolerance == 0
                          ? ", bit for bit"
                          : fmt::format(" within a relative error of {:.3g}", args.tolerance)));
  } else {
    const auto largest = std::max_element(different.begin(), different.end(), is_less);
    print(fmt::format("{} of {} tensors differ\nfirst    {}\nlargest  {}\n", different.size(), found.tensors,
                      difference_text(different.front()), difference_text(*largest)));
  }
  return different.empty() ? kExitDone : kExitDifferent;
}

int checkpoint_reshard_command(const CheckpointArgs& args) {
  print(made_text(core::reshard::reshard(args.path, args.out, args.overrides)));
  return 0;
}

int checkpoint_merge_command(const CheckpointArgs& args) {
  print(made_text(core::reshard::merge(args.paths, args.out)));
  return 0;
}

}  // namespace trainerd::apps
