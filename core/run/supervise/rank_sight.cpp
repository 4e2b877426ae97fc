#include "core/run/supervise/rank_sight.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace trainerd::core::run {
namespace {

using nlohmann::json;
using parallel::FlightRecord;
using parallel::FlightState;
using train::Activity;

/// The final zero may be missing in a record that its rank is just writing.
template <std::size_t N>
std::string text_of(const std::array<char, N>& text) {
  return {text.begin(), std::find(text.begin(), text.end(), '\0')};
}

const char* name_of(FlightState state) {
  return state == FlightState::done ? "done" : state == FlightState::started ? "started" : "enqueued";
}

FlightState state_of(const std::string& name) {
  return name == "done"      ? FlightState::done
         : name == "started" ? FlightState::started
                             : FlightState::enqueued;
}

Activity activity_of(const std::string& name) {
  for (std::size_t i = 0; i < train::kActivities; ++i)
    if (name == train::name_of(static_cast<Activity>(i))) return static_cast<Activity>(i);
  return Activity::none;
}

json operation_json(const SeenOperation& o) {
  return {{"order", o.order},
          {"sequence", o.sequence},
          {"op", o.op},
          {"label", o.label},
          {"group", o.group},
          {"group_size", o.group_size},
          {"dtype", o.dtype},
          {"bytes", o.bytes},
          {"state", name_of(o.state)},
          {"done_ago", o.done_ago},
          {"started_ago", o.started_ago}};
}

SeenOperation operation_from(const json& j) {
  return {.order = j.at("order"),
          .sequence = j.at("sequence"),
          .bytes = j.at("bytes"),
          .group_size = j.at("group_size"),
          .state = state_of(j.at("state")),
          .op = j.at("op"),
          .group = j.at("group"),
          .label = j.at("label"),
          .dtype = j.at("dtype"),
          .started_ago = j.at("started_ago"),
          .done_ago = j.at("done_ago")};
}

}  // namespace

std::string doing(const RankSight& sight) {
  std::string place = " of step " + std::to_string(sight.step);
  if (sight.microbatch >= 0) place = " of microbatch " + std::to_string(sight.microbatch) + place;
  if (sight.chunk > 0) place = " of chunk " + std::to_string(sight.chunk) + "," + place;
  switch (sight.activity) {
    case Activity::none: return "its start";
    case Activity::load: return "the load of its state";
    case Activity::between: return "the end of step " + std::to_string(sight.step);
    case Activity::data_wait: return "the wait for data" + place;
    case Activity::forward: return "forward" + place;
    case Activity::backward: return "backward" + place;
    case Activity::reduce_grads: return "the reduction of gradients" + place;
    case Activity::optimizer: return "the update" + place;
    case Activity::report: return "the wait for the device at the end" + place;
    case Activity::evaluation:
      return (sight.microbatch < 0 ? "the evaluation"
                                   : "the evaluation of microbatch " + std::to_string(sight.microbatch)) +
             " after step " + std::to_string(sight.step);
    case Activity::snapshot: return "the snapshot after step " + std::to_string(sight.step);
    case Activity::agent_wait: return "the wait for its agent after step " + std::to_string(sight.step);
    case Activity::meet: return "the wait for members of a group to come";
    case Activity::done: break;
  }
  return "the end of its work";
}

std::string latest_operation(const RankSight& sight) {
  if (sight.operations.empty()) return "";
  const SeenOperation& op = sight.operations.back();
  return op.op + " #" + std::to_string(op.sequence) + " '" + op.label + "' of " + op.group + ", " +
         (op.state == FlightState::done      ? "done"
          : op.state == FlightState::started ? "under way"
                                             : "not begun");
}

UsualTimes UsualTimes::of(const train::RankPage& page, const UsualTimes& earlier) {
  UsualTimes usual{.step_seconds = page.steps() > 0 ? page.median_step_seconds() : earlier.step_seconds};
  for (std::size_t i = 0; i < train::kActivities; ++i) {
    const double own = page.longest_seconds(static_cast<Activity>(i)), before = earlier.longest_seconds[i];
    usual.longest_seconds[i] = page.steps() == 0 ? std::max(own, before) : own > 0 ? own : before;
  }
  return usual;
}

RankSight sight_of(const train::RankPage& page, std::span<const FlightRecord> ring, double now,
                   const UsualTimes& earlier) {
  const auto ago = [now](double at) { return at > 0 ? std::max(0.0, now - at) : 0; };
  const UsualTimes usual = UsualTimes::of(page, earlier);
  RankSight sight{.activity = page.activity(),
                  .step = page.step(),
                  .chunk = page.chunk(),
                  .microbatch = page.microbatch(),
                  .waits = page.waits(),
                  .activity_seconds = ago(page.since()),
                  .beat_seconds = ago(page.beat_at()),
                  .steps = page.steps(),
                  .step_seconds = usual.step_seconds,
                  .longest_seconds = usual.longest_seconds[static_cast<std::size_t>(page.activity())]};
  std::vector<FlightRecord> records;
  for (const FlightRecord& record : ring)
    if (record.order > 0) records.push_back(record);
  std::ranges::sort(records, {}, &FlightRecord::order);
  for (const FlightRecord& r : records)
    sight.operations.push_back({.order = r.order,
                                .sequence = r.sequence,
                                .bytes = r.bytes,
                                .group_size = r.group_size,
                                .state = r.state,
                                .op = text_of(r.op),
                                .group = text_of(r.group),
                                .label = text_of(r.label),
                                .dtype = kernels::name_of(r.dtype),
                                .started_ago = ago(r.started_seconds),
                                .done_ago = ago(r.done_seconds)});
  return sight;
}

json to_json(const RankSight& s) {
  json operations = json::array();
  for (const SeenOperation& o : s.operations) operations.push_back(operation_json(o));
  json sight{{"rank", s.rank},
             {"node", s.node},
             {"activity", train::name_of(s.activity)},
             {"step", s.step},
             {"chunk", s.chunk},
             {"microbatch", s.microbatch},
             {"activity_seconds", s.activity_seconds},
             {"beat_seconds", s.beat_seconds},
             {"steps", s.steps},
             {"step_seconds", s.step_seconds},
             {"longest_seconds", s.longest_seconds},
             {"asleep_seconds", s.still.asleep},
             {"running_seconds", s.still.running},
             {"computing_seconds", s.still.computing},
             {"stopped_seconds", s.still.stopped},
             {"disk_seconds", s.still.disk},
             {"process_state", s.process_state == 0 ? std::string() : std::string(1, s.process_state)},
             {"operations", operations}};
  sight["waits"] = s.waits ? json(parallel::info(*s.waits).name) : json();
  return sight;
}

RankSight sight_from(const json& j) {
  RankSight s{.rank = j.at("rank"),
              .node = j.at("node"),
              .activity = activity_of(j.at("activity")),
              .step = j.at("step"),
              .chunk = j.at("chunk"),
              .microbatch = j.at("microbatch"),
              .activity_seconds = j.at("activity_seconds"),
              .beat_seconds = j.at("beat_seconds"),
              .steps = j.at("steps"),
              .step_seconds = j.at("step_seconds"),
              .longest_seconds = j.at("longest_seconds"),
              .still = {.asleep = j.at("asleep_seconds"),
                        .running = j.at("running_seconds"),
                        .computing = j.at("computing_seconds"),
                        .stopped = j.at("stopped_seconds"),
                        .disk = j.at("disk_seconds")}};
  if (const std::string state = j.at("process_state"); !state.empty()) s.process_state = state.front();
  if (const json& waits = j.at("waits"); waits.is_string())
    for (const parallel::GroupInfo& group : parallel::kGroups)
      if (waits.get<std::string>() == group.name) s.waits = group.group;
  for (const json& o : j.at("operations")) s.operations.push_back(operation_from(o));
  return s;
}

}  // namespace trainerd::core::run
