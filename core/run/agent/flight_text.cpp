#include "core/run/agent/flight_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string_view>

#include "core/run/worker/flight_segment.h"

namespace trainerd::core::run {
namespace {

using parallel::FlightRecord;
using parallel::FlightState;

/// The final zero may be missing in a record that its rank is just writing.
template <std::size_t N>
std::string_view text_of(const std::array<char, N>& text) {
  return {text.data(), static_cast<std::size_t>(std::find(text.begin(), text.end(), '\0') - text.begin())};
}

bool is_exchange(const FlightRecord& r) { return text_of(r.op) == "exchange"; }

/// `all_reduce #412 "norm" of group world (8 ranks), 24 bytes`
std::string describe(const FlightRecord& r) {
  return fmt::format("{} #{} \"{}\" of group {} ({} ranks), {} bytes", text_of(r.op), r.sequence,
                     text_of(r.label), text_of(r.group), r.group_size, r.bytes);
}

/// The oldest operation that the rank has begun and not ended. A collective is preferred, since other ranks
/// wait in it too; messages may be posted long before they are waited for.
const FlightRecord* under_way(const RankFlights& rank) {
  const FlightRecord* exchange = nullptr;
  for (const FlightRecord& r : rank.records) {
    if (r.state != FlightState::started) continue;
    if (!is_exchange(r)) return &r;
    if (exchange == nullptr) exchange = &r;
  }
  return exchange;
}

const FlightRecord* last_done(const RankFlights& rank) {
  const FlightRecord* last = nullptr;
  for (const FlightRecord& r : rank.records)
    if (r.state == FlightState::done && (last == nullptr || r.done_seconds > last->done_seconds)) last = &r;
  return last;
}

std::string process_text(char state) {
  switch (state) {
    case 'T':
    case 't': return "; its process is stopped";
    case 'D': return "; its process waits for a device or a disk";
    case 'X': return "; its process has ended";
    default: return "";
  }
}

std::string line_of(const RankFlights& rank, double now) {
  const std::string front = fmt::format("rank {}: ", rank.rank), behind = process_text(rank.process_state);
  if (const FlightRecord* r = under_way(rank))
    return fmt::format("{}{}: begun {:.1f} s ago, not done{}", front, describe(*r), now - r->started_seconds,
                       behind);
  if (const FlightRecord* r = last_done(rank))
    return fmt::format("{}in no communication for {:.1f} s, since {}{}", front, now - r->done_seconds,
                       describe(*r), behind);
  return front + "no communication yet" + behind;
}

/// "ranks 0, 2 and 3".
std::string names(const std::vector<std::int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return text;
}

bool has_entered(const RankFlights& rank, const FlightRecord& op) {
  return std::any_of(rank.records.begin(), rank.records.end(), [&](const FlightRecord& r) {
    return !is_exchange(r) && text_of(r.group) == text_of(op.group) && r.sequence >= op.sequence &&
           r.state != FlightState::enqueued;
  });
}

struct Awaited {
  std::string what;
  std::vector<std::int64_t> waiting, missing;
  bool root = false;  ///< some missing rank is in no operation, so it waits for no other rank
};

/// The collectives that ranks wait in, with the ranks of this node that have not entered them.
std::vector<Awaited> awaited(const std::vector<RankFlights>& ranks, const parallel::Layout& layout,
                             const parallel::GroupNeeds& needs) {
  std::map<std::string, Awaited> found;
  for (const RankFlights& rank : ranks) {
    const FlightRecord* op = under_way(rank);
    if (op == nullptr || is_exchange(*op)) continue;
    for (const parallel::GroupMembers& group : parallel::groups_of(layout, rank.rank, needs)) {
      if (text_of(op->group) != info(group.group).name) continue;
      Awaited& a = found[fmt::format("{}/{}/{}", text_of(op->group), group.ranks.first, op->sequence)];
      a.waiting.push_back(rank.rank);
      if (a.waiting.size() > 1) continue;
      a.what = describe(*op);
      for (const RankFlights& other : ranks) {
        if (!group.ranks.place(other.rank) || has_entered(other, *op)) continue;
        a.missing.push_back(other.rank);
        a.root = a.root || under_way(other) == nullptr;
      }
    }
  }
  std::vector<Awaited> list;
  for (auto& [key, a] : found)
    if (!a.missing.empty()) list.push_back(std::move(a));
  // If some missing ranks wait for no other, those that wait themselves are not the cause.
  if (std::any_of(list.begin(), list.end(), [](const Awaited& a) { return a.root; }))
    std::erase_if(list, [](const Awaited& a) { return !a.root; });
  return list;
}

}  // namespace

std::vector<RankFlights> read_flights(const base::Segment& segment, const NodeRanks& here) {
  std::vector<RankFlights> ranks;
  for (std::int64_t place = 0; place < here.count; ++place) {
    RankFlights& rank = ranks.emplace_back(RankFlights{.rank = here.first + place, .records = {}});
    for (const FlightRecord& record : flight_ring(segment, place))
      if (record.order > 0) rank.records.push_back(record);
    std::sort(rank.records.begin(), rank.records.end(),
              [](const FlightRecord& a, const FlightRecord& b) { return a.order < b.order; });
  }
  return ranks;
}

char process_state(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return 'X';
  const std::size_t name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() ? line[name_end + 2] : '\0';
}

std::vector<std::string> flight_text(const std::vector<RankFlights>& ranks, const parallel::Layout& layout,
                                     const parallel::GroupNeeds& needs, double now) {
  std::vector<std::string> lines;
  for (const Awaited& a : awaited(ranks, layout, needs))
    lines.push_back(names(a.missing) + (a.missing.size() == 1 ? " has" : " have") + " not entered " + a.what +
                    ", which " + names(a.waiting) + (a.waiting.size() == 1 ? " waits in" : " wait in"));
  for (const RankFlights& rank : ranks) lines.push_back(line_of(rank, now));
  return lines;
}

}  // namespace trainerd::core::run
