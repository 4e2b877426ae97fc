#include "core/run/agent/trained_dp.h"

#include <charconv>
#include <string>

#include "core/run/agent/run.h"
#include "io/checkpoint/files.h"
#include "io/checkpoint/tiers.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

/// The layout is written as by parallel::describe: "tp1 cp1 ep1 dp2 pp1 ...".
std::optional<std::int64_t> dp_of(const io::Manifest& manifest) {
  const auto found = manifest.state.environment.find("layout");
  if (found == manifest.state.environment.end()) return std::nullopt;
  const std::string& layout = found->second;
  const std::size_t at = layout.find(" dp");
  if (at == std::string::npos) return std::nullopt;
  std::int64_t dp = 0;
  const char* begin = layout.data() + at + 3;
  const auto [end, error] = std::from_chars(begin, layout.data() + layout.size(), dp);
  return error == std::errc() && end != begin && dp >= 1 ? std::optional(dp) : std::nullopt;
}

/// The dp that all checkpoints have in common; only manifests are read. None if they differ or one cannot be
/// read.
std::optional<std::int64_t> common_dp(const io::CheckpointStore& store) {
  std::optional<std::int64_t> common;
  try {
    for (const io::StoredCheckpoint& stored : store.list_attempts()) {
      const std::optional<std::int64_t> dp = dp_of(io::read_manifest(*store.folder(stored.name())));
      if (!dp || (common && common != dp)) return std::nullopt;
      common = dp;
    }
  } catch (const base::CheckpointError&) {  // the caller's choice of a checkpoint reports it
    return std::nullopt;
  }
  return common;
}

}  // namespace

std::optional<std::int64_t> trained_dp(const job::JobSpec& job, const io::FindS3& find_s3) {
  const io::CheckpointStore own(io::open_storage(io::local_path(job.output) + "/checkpoints"), {});
  AgentOptions options;
  options.job = job;
  options.find_s3 = find_s3;
  if (!job.checkpoint.durable.on()) {
    if (const auto dp = common_dp(own)) return dp;
    const auto found = own.newest_valid({});  // the run itself reports damaged checkpoints
    return found ? dp_of(found->manifest) : std::nullopt;
  }
  const io::CheckpointStore durable = durable_store(options);
  const auto here = common_dp(own), there = common_dp(durable);
  if (here && here == there) return here;
  const auto choice = io::newest_of_tiers(own, durable, {});
  return choice ? dp_of(choice->found.manifest) : std::nullopt;
}

}  // namespace trainerd::core::run
