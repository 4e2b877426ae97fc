#include "apps/commands.h"
#include "apps/output.h"
#include "io/checkpoint/report.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

std::string sizes(const std::vector<std::int64_t>& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

/// At least one complete one. Throws CheckpointError that names those without a marker.
io::CheckpointsAt some_checkpoints(const std::string& path) {
  io::CheckpointsAt found = io::checkpoints_at(path);
  if (!found.complete.empty()) return found;
  std::string text = "no complete checkpoint in " + path;
  for (const io::StoredCheckpoint& stored : found.incomplete)
    text += "\n" + stored.path + " has no file COMPLETE: it was never finished";
  throw base::checkpoint_error(text);
}

std::string show_text(const io::Verified& checkpoint) {
  const io::Manifest& manifest = *checkpoint.manifest;
  std::string text = "step    " + std::to_string(manifest.state.step) + "\ncursor  " +
                     std::to_string(manifest.state.cursor) + " samples\ntokens  " +
                     std::to_string(manifest.state.tokens) + "\nseed    " +
                     std::to_string(manifest.state.seed) + "\n";
  for (const auto& [key, value] : manifest.state.identity) text += key + ": " + value + "\n";
  for (const auto& [key, value] : manifest.state.environment) text += key + ": " + value + "\n";
  for (const io::ShardInfo& shard : manifest.shards)
    text += shard.file + ": " + std::to_string(shard.bytes) + " bytes, xxh3 " + shard.xxh3 + "\n";
  for (const io::TensorSummary& tensor : io::tensors_of(manifest))
    text += tensor.name + "  " + kernels::name_of(tensor.dtype) + "  " + sizes(tensor.shape) +
            (tensor.parts == 1 ? "" : "  in " + std::to_string(tensor.parts) + " parts") + "\n";
  return text;
}

}  // namespace

int checkpoint_list_command(const CheckpointArgs& args) {
  const io::CheckpointsAt found = io::checkpoints_at(args.path);
  if (args.json) return print(io::list_json(found)), 0;
  std::string text;
  for (const io::StoredCheckpoint& stored : found.complete)
    text += "step " + std::to_string(stored.step) + "  " + stored.path + "\n";
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
    const io::Verified& one = all.emplace_back(io::verified(stored));
    if (one.manifest) {
      text += stored.path + ": complete: step " + std::to_string(one.manifest->state.step) + ", " +
              std::to_string(one.manifest->shards.size()) + " shards, " +
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
  const io::Verified newest = io::verified(some_checkpoints(args.path).complete.front());
  if (!newest.manifest) throw base::checkpoint_error(newest.problem);
  print(args.json ? io::show_json(newest) : show_text(newest));
  return 0;
}

}  // namespace trainerd::apps
