#include "parallel/comm/shm/group_context.h"

#include "kernels/base/error.h"

namespace trainerd::parallel {

std::string GroupContext::describe(const OpRecord& record) const {
  return parallel::describe(record) + " (number " + std::to_string(record.sequence) + " of group " + name +
         ")";
}

std::string GroupContext::missing(std::uint64_t meeting) const {
  std::string text;
  for (std::int64_t i = 0; i < size(); ++i)
    if (group.member(i).arrived.load(std::memory_order_relaxed) < meeting)
      text += (text.empty() ? "rank " : ", rank ") + std::to_string(world_rank(i));
  return text;
}

void GroupContext::fail(const std::string& text) const {
  world.abort("rank " + std::to_string(world_rank(rank)) + ": " + text);
  throw base::comm_error(text);
}

void GroupContext::throw_ended(const OpRecord& record, const std::string& missing) const {
  std::string text = describe(record) + " was ended";
  if (!missing.empty()) text += " while it waited for " + missing;
  throw base::comm_error(text + ": " + world.abort_text());
}

void GroupContext::throw_if_ended(const OpRecord& record) const {
  if (world.aborted()) throw_ended(record, "");
}

}  // namespace trainerd::parallel
