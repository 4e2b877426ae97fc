#include <filesystem>
#include <map>

#include "apps/commands.h"
#include "apps/output.h"
#include "io/checkpoint/checkpoint.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

namespace fs = std::filesystem;

/// The checkpoints of a run: its output directory, or the directory of the checkpoints themselves.
io::CheckpointStore store_of(const std::string& path) {
  if (!fs::is_directory(path)) throw base::checkpoint_error("there is no directory " + path);
  const fs::path inside = fs::path(path) / "checkpoints";
  return {fs::is_directory(inside) ? inside.string() : path, 1};
}

std::string sizes(const std::vector<std::int64_t>& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

std::int64_t bytes_of(const io::Manifest& manifest) {
  std::int64_t bytes = 0;
  for (const io::ShardInfo& shard : manifest.shards) bytes += shard.bytes;
  return bytes;
}

}  // namespace

int checkpoint_list_command(const CheckpointArgs& args) {
  std::string text;
  for (const io::StoredCheckpoint& stored : store_of(args.path).list())
    text += "step " + std::to_string(stored.step) + "  " + stored.path + "\n";
  print(text.empty() ? "no complete checkpoint in " + args.path + "\n" : text);
  return 0;
}

int checkpoint_verify_command(const CheckpointArgs& args) {
  const io::Manifest manifest = io::verify_checkpoint(args.path);
  print(args.path + ": whole: step " + std::to_string(manifest.state.step) + ", " + std::to_string(manifest.shards.size()) +
        " shards, " + std::to_string(bytes_of(manifest)) + " bytes, every checksum right\n");
  return 0;
}

int checkpoint_show_command(const CheckpointArgs& args) {
  const io::Manifest manifest = io::verify_checkpoint(args.path);
  std::string text = "step    " + std::to_string(manifest.state.step) + "\ncursor  " + std::to_string(manifest.state.cursor) +
                     " samples\ntokens  " + std::to_string(manifest.state.tokens) + "\nseed    " +
                     std::to_string(manifest.state.seed) + "\n";
  for (const auto& [key, value] : manifest.state.identity) text += key + ": " + value + "\n";
  for (const auto& [key, value] : manifest.state.environment) text += key + ": " + value + "\n";
  for (const io::ShardInfo& shard : manifest.shards)
    text += shard.file + ": " + std::to_string(shard.bytes) + " bytes, xxh3 " + shard.xxh3 + "\n";
  std::map<std::string, std::pair<const io::TensorSlice*, int>> tensors;  // by logical name: one of its boxes, and how many
  for (const auto& [shard, slice] : manifest.slices) {
    auto& known = tensors[slice.name];
    known.first = &slice;
    ++known.second;
  }
  for (const auto& [name, known] : tensors)
    text += name + "  " + kernels::name_of(known.first->dtype) + "  " + sizes(known.first->logical_shape) +
            (known.second == 1 ? "" : "  in " + std::to_string(known.second) + " parts") + "\n";
  print(text);
  return 0;
}

}  // namespace trainerd::apps
