#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "io/records/older_logs.h"
#include "io/runs/status.h"
#include "io/text/json.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

using Json = nlohmann::json;
using Object = nlohmann::ordered_json;

constexpr int kStatusFormat = 1;
constexpr std::array<const char*, 7> kRunStateNames{"starting", "training", "evaluating", "done",
                                                    "stopped",  "failed",   "lost"};

// Values that are not finite are null in JSON.
double number_of(const Json& value) {
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!value.is_number()) throw JsonError("a number is expected");
  return value.get<double>();
}
double number_member(const Json& object, const char* key) { return number_of(member(object, key)); }

const Json& list_member(const Json& object, const char* key) {
  const Json& list = member(object, key);
  if (!list.is_array()) throw JsonError("\"" + std::string(key) + "\" is not a list");
  return list;
}

std::int64_t integer_of(const Json& value) {
  if (!value.is_number_integer()) throw JsonError("an integer is expected");
  return value.get<std::int64_t>();
}

Object pairs(const std::vector<std::pair<std::string, std::int64_t>>& values) {
  Object list = Object::array();
  for (const auto& [name, bytes] : values) list.push_back(Object::array({name, bytes}));
  return list;
}

std::vector<std::pair<std::string, std::int64_t>> pairs_of(const Json& list) {
  std::vector<std::pair<std::string, std::int64_t>> values;
  for (const Json& item : list) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_string())
      throw JsonError("a pair of a name and bytes is expected");
    values.emplace_back(item[0].get<std::string>(), integer_of(item[1]));
  }
  return values;
}

Object counts(const std::vector<std::pair<std::int64_t, std::int64_t>>& values) {
  Object list = Object::array();
  for (const auto& [first, second] : values) list.push_back(Object::array({first, second}));
  return list;
}

Object object_of_info(const RunInfo& i) {
  Object o{{"name", i.name},
           {"output", i.output},
           {"device", i.device},
           {"threads", i.threads},
           {"parameters", i.parameters},
           {"steps", i.steps},
           {"start_step", i.start_step},
           {"start_tokens", i.start_tokens},
           {"tokens_per_step", i.tokens_per_step},
           {"tokens", i.total_tokens()},
           {"ramp", counts(i.ramp)},
           {"flops_per_token", i.flops_per_token},
           {"precision", i.precision},
           {"memory_planned_bytes", i.memory_planned_bytes},
           {"memory_regions", pairs(i.memory_regions)},
           {"memory_uses", pairs(i.memory_uses)},
           {"version", i.version},
           {"commit", i.commit},
           {"command", i.command},
           {"host", i.host},
           {"layout", i.layout},
           {"data", i.data},
           {"data_tokens", i.data_tokens},
           {"adapters", i.adapters},
           {"peak_measured", i.peak_measured}};
  if (i.peak_flops) o["peak_flops"] = *i.peak_flops;
  return o;
}

RunInfo info_of(const Json& o) {
  RunInfo i;
  i.name = string_member(o, "name");
  i.output = string_member(o, "output");
  i.device = string_member(o, "device");
  i.threads = static_cast<int>(int_member(o, "threads"));
  i.parameters = int_member(o, "parameters");
  i.steps = int_member(o, "steps");
  i.start_step = int_member(o, "start_step");
  i.start_tokens = int_member(o, "start_tokens");
  i.tokens_per_step = int_member(o, "tokens_per_step");
  if (o.contains("ramp"))
    for (const Json& stage : list_member(o, "ramp")) {
      if (!stage.is_array() || stage.size() != 2) throw JsonError("a pair of steps and tokens is expected");
      i.ramp.emplace_back(integer_of(stage[0]), integer_of(stage[1]));
    }
  i.flops_per_token = number_member(o, "flops_per_token");
  i.precision = string_member(o, "precision");
  i.memory_planned_bytes = int_member(o, "memory_planned_bytes");
  i.memory_regions = pairs_of(list_member(o, "memory_regions"));
  i.memory_uses = pairs_of(list_member(o, "memory_uses"));
  i.version = string_member(o, "version");
  i.commit = string_member(o, "commit");
  i.command = string_member(o, "command");
  i.host = string_member(o, "host");
  i.layout = string_member(o, "layout");
  i.data = string_member(o, "data");
  i.data_tokens = int_member(o, "data_tokens");
  if (o.contains("adapters")) i.adapters = string_member(o, "adapters");
  i.peak_measured = member(o, "peak_measured") == true;
  if (o.contains("peak_flops")) i.peak_flops = number_member(o, "peak_flops");
  return i;
}

Object object_of_prediction(const PredictionRecord& p) {
  Object terms = Object::array();
  for (const PredictionTerm& t : p.terms)
    terms.push_back(
        Object{{"name", t.name}, {"predicted", t.predicted}, {"measured", t.measured}, {"error", t.error}});
  return {{"first_step", p.first_step}, {"last_step", p.last_step}, {"terms", terms}};
}

PredictionRecord prediction_of(const Json& o) {
  PredictionRecord p{int_member(o, "first_step"), int_member(o, "last_step"), {}};
  for (const Json& t : list_member(o, "terms"))
    p.terms.push_back({prediction_kind(string_member(t, "name")), string_member(t, "name"),
                       number_member(t, "predicted"), number_member(t, "measured"),
                       number_member(t, "error")});
  return p;
}

using Times = std::array<double, base::kLedgerParts.size()>;

Object object_of_times(const Times& times) {
  Object o = Object::object();
  for (std::size_t i = 0; i < times.size(); ++i) o[base::kLedgerParts[i].name] = times[i];
  return o;
}

Times times_of(const Json& o) {
  Times times{};
  for (std::size_t i = 0; i < times.size(); ++i) {
    const base::LedgerPartInfo& part = base::kLedgerParts[i];
    if (in_older_logs(part.part) || o.contains(part.name)) times[i] = number_member(o, part.name);
  }
  return times;
}

struct Quantity {
  const char* name;
  Spread StepBucket::*spread;
};
constexpr std::array<Quantity, 5> kQuantities{{{"loss", &StepBucket::loss},
                                               {"grad_norm", &StepBucket::grad_norm},
                                               {"learning_rate", &StepBucket::learning_rate},
                                               {"tokens_per_second", &StepBucket::tokens_per_second},
                                               {"mfu", &StepBucket::mfu}}};

// Writes columns: the steps of each bucket, low, mean and high of each quantity (null if it has no values),
// and the ledger in seconds per step.
Object columns_of(const std::vector<StepBucket>& buckets) {
  Object o = Object::object();
  Object steps = Object::array();
  for (const StepBucket& b : buckets) steps.push_back(Object::array({b.first_step, b.last_step, b.steps}));
  o["steps"] = std::move(steps);
  for (const Quantity& q : kQuantities) {
    Object column = Object::array();
    for (const StepBucket& b : buckets) {
      const Spread& s = b.*q.spread;
      if (s.count == 0) column.push_back(nullptr);
      else column.push_back(Object::array({s.low, s.mean(), s.high}));
    }
    o[q.name] = std::move(column);
  }
  Object time = Object::object();
  for (std::size_t i = 0; i < base::kLedgerParts.size(); ++i) {
    Object column = Object::array();
    for (const StepBucket& b : buckets) column.push_back(b.time[i] / static_cast<double>(b.steps));
    time[base::kLedgerParts[i].name] = std::move(column);
  }
  o["time"] = std::move(time);
  return o;
}

std::vector<StepBucket> buckets_of(const Json& o) {
  std::vector<StepBucket> buckets;
  for (const Json& item : list_member(o, "steps")) {
    if (!item.is_array() || item.size() != 3) throw JsonError("three integers are expected");
    StepBucket& b = buckets.emplace_back();
    b.first_step = integer_of(item[0]);
    b.last_step = integer_of(item[1]);
    b.steps = integer_of(item[2]);
    if (b.steps < 1) throw JsonError("a bucket has no step");
  }
  const auto each = [&buckets](const Json& column, const std::function<void(StepBucket&, const Json&)>& set) {
    if (column.size() != buckets.size()) throw JsonError("columns are not of one length");
    for (std::size_t i = 0; i < buckets.size(); ++i) set(buckets[i], column[i]);
  };
  for (const Quantity& q : kQuantities)
    each(list_member(o, q.name), [&q](StepBucket& b, const Json& value) {
      if (value.is_null()) return;
      if (!value.is_array() || value.size() != 3) throw JsonError("low, mean and high are expected");
      const auto count = static_cast<double>(b.steps);
      b.*q.spread = {b.steps, number_of(value[1]) * count, number_of(value[0]), number_of(value[2])};
    });
  const Json& time = member(o, "time");
  for (std::size_t i = 0; i < base::kLedgerParts.size(); ++i) {
    const base::LedgerPartInfo& part = base::kLedgerParts[i];
    if (!in_older_logs(part.part) && !time.contains(part.name)) continue;
    each(list_member(time, part.name), [i](StepBucket& b, const Json& value) {
      b.time[i] = number_of(value) * static_cast<double>(b.steps);
    });
  }
  return buckets;
}

Object object_of_ranks(const std::vector<RankStatus>& ranks) {
  Object states = Object::array(), nodes = states, planned = states, used = states, doing = states,
         last = states, since = states;
  for (const RankStatus& r : ranks) {
    states.push_back(static_cast<int>(r.state));
    nodes.push_back(r.node);
    planned.push_back(r.planned_bytes);
    used.push_back(r.used_bytes ? Object(*r.used_bytes) : Object(nullptr));
    doing.push_back(r.doing), last.push_back(r.last), since.push_back(r.doing_at);
  }
  Object names = Object::array();
  for (int i = 0; i < kRankStates; ++i) names.push_back(name_of(static_cast<RankState>(i)));
  return {{"names", names},     {"state", states}, {"node", nodes}, {"planned_bytes", planned},
          {"used_bytes", used}, {"doing", doing},  {"last", last},  {"doing_at", since}};
}

std::vector<RankStatus> ranks_of(const Json& o) {
  const Json &states = list_member(o, "state"), &nodes = list_member(o, "node");
  const Json &planned = list_member(o, "planned_bytes"), &used = list_member(o, "used_bytes");
  const Json &doing = list_member(o, "doing"), &last = list_member(o, "last"),
             &since = list_member(o, "doing_at");
  for (const Json* column : {&nodes, &planned, &used, &doing, &last, &since})
    if (column->size() != states.size()) throw JsonError("columns of ranks are not of one length");
  const auto text = [](const Json& value) {
    if (!value.is_string()) throw JsonError("a text is expected");
    return value.get<std::string>();
  };
  std::vector<RankStatus> ranks(states.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::int64_t state = integer_of(states[i]);
    if (state < 0 || state >= kRankStates) throw JsonError("a rank's state is not known");
    ranks[i] = {static_cast<RankState>(state), integer_of(nodes[i]), integer_of(planned[i]), {}};
    ranks[i].doing = text(doing[i]), ranks[i].last = text(last[i]), ranks[i].doing_at = number_of(since[i]);
    if (!used[i].is_null()) ranks[i].used_bytes = integer_of(used[i]);
  }
  return ranks;
}

// Records of steps and events have the same form as in their logs.
Object record_object(const std::string& line) { return Object::parse(line); }

Object events_of(const std::vector<RunEvent>& events) {
  Object list = Object::array();
  for (const RunEvent& e : events)
    list.push_back(
        Object{{"wall_time", e.wall_time}, {"step", e.step}, {"event", e.kind}, {"message", e.message}});
  return list;
}

RunStatus status_of(const Json& o) {
  if (int_member(o, "format") != kStatusFormat) throw JsonError("it is of another version of trainerd");
  RunStatus s;
  s.info = info_of(member(o, "info"));
  s.now = number_member(o, "now");
  const std::string state = string_member(o, "state");
  const auto known = std::find(kRunStateNames.begin(), kRunStateNames.end(), state);
  if (known == kRunStateNames.end()) throw JsonError("the run's state \"" + state + "\" is not known");
  s.state = static_cast<RunState>(known - kRunStateNames.begin());
  s.outcome = string_member(o, "outcome");
  s.began = number_member(o, "began");
  s.seconds = number_member(o, "seconds");
  s.attempts = int_member(o, "attempts");
  s.step = int_member(o, "step");
  s.tokens = int_member(o, "tokens");
  if (o.contains("last")) s.last = parse_step_record(text_of(o["last"]));
  if (o.contains("evaluation_progress")) {
    const Json& p = o["evaluation_progress"];
    s.evaluation_progress = {int_member(p, "step"), int_member(p, "done"), int_member(p, "batches")};
  }
  if (o.contains("checkpoint"))
    s.checkpoint = std::get<CheckpointRecord>(parse_event_record(text_of(o["checkpoint"])));
  s.step_seconds = number_member(o, "step_seconds");
  if (o.contains("eta_seconds")) s.eta_seconds = number_member(o, "eta_seconds");
  s.recent_steps = int_member(o, "recent_steps");
  s.recent_time = times_of(member(o, "recent_time"));
  s.total_time = times_of(member(o, "total_time"));
  s.ranks = ranks_of(member(o, "ranks"));
  s.memory_planned_bytes = int_member(o, "memory_planned_bytes");
  if (o.contains("memory_used_bytes")) s.memory_used_bytes = int_member(o, "memory_used_bytes");
  s.prediction = prediction_of(member(o, "prediction"));
  for (const Json& e : list_member(o, "events"))
    s.events.push_back({number_member(e, "wall_time"), int_member(e, "step"), string_member(e, "event"),
                        string_member(e, "message")});
  s.series = buckets_of(member(o, "series"));
  for (const Json& e : list_member(o, "evaluations"))
    s.evaluations.push_back(std::get<EvaluationRecord>(parse_event_record(text_of(e))));
  if (!s.evaluations.empty()) s.evaluation = s.evaluations.back();
  for (const Json& step : list_member(o, "resumed_after")) s.resumed_after.push_back(integer_of(step));
  return s;
}

}  // namespace

const char* name_of(RunState state) { return kRunStateNames.at(static_cast<std::size_t>(state)); }

std::string to_json(const RunStatus& s) {
  Object o{{"format", kStatusFormat},
           {"now", s.now},
           {"state", name_of(s.state)},
           {"outcome", s.outcome},
           {"info", object_of_info(s.info)},
           {"began", s.began},
           {"seconds", s.seconds},
           {"attempts", s.attempts},
           {"step", s.step},
           {"tokens", s.tokens},
           {"step_seconds", s.step_seconds},
           {"recent_steps", s.recent_steps},
           {"recent_time", object_of_times(s.recent_time)},
           {"total_time", object_of_times(s.total_time)},
           {"memory_planned_bytes", s.memory_planned_bytes},
           {"ranks", object_of_ranks(s.ranks)},
           {"prediction", object_of_prediction(s.prediction)},
           {"events", events_of(s.events)},
           {"series", columns_of(s.series)},
           {"evaluations", Object::array()},
           {"resumed_after", s.resumed_after}};
  if (s.last) o["last"] = record_object(to_json_line(*s.last));
  if (s.eta_seconds) o["eta_seconds"] = *s.eta_seconds;
  if (s.memory_used_bytes) o["memory_used_bytes"] = *s.memory_used_bytes;
  if (s.checkpoint) o["checkpoint"] = record_object(to_json_line(EventRecord(*s.checkpoint)));
  if (s.evaluation_progress)
    o["evaluation_progress"] = Object{{"step", s.evaluation_progress->step},
                                      {"done", s.evaluation_progress->done},
                                      {"batches", s.evaluation_progress->batches}};
  for (const EvaluationRecord& e : s.evaluations)
    o["evaluations"].push_back(record_object(to_json_line(EventRecord(e))));
  return to_text(o);
}

RunStatus parse_run_status(const std::string& text) {
  try {
    return status_of(parse_json(text));
  } catch (const JsonError& e) {
    throw base::data_error(std::string("not a run's status: ") + e.what());
  } catch (const std::bad_variant_access&) {
    throw base::data_error("not a run's status: a record of another kind");
  }
}

std::string run_json(const RunInfo& info, const PredictionRecord& prediction) {
  return to_text(Object{{"format", kStatusFormat},
                        {"info", object_of_info(info)},
                        {"prediction", object_of_prediction(prediction)}},
                 2);
}

void parse_run_json(const std::string& text, RunInfo& info, PredictionRecord& prediction) {
  try {
    const Json o = parse_json(text);
    if (int_member(o, "format") != kStatusFormat) throw JsonError("it is of another version of trainerd");
    info = info_of(member(o, "info"));
    prediction = prediction_of(member(o, "prediction"));
  } catch (const JsonError& e) {
    throw base::data_error(std::string("not a run's facts: ") + e.what());
  }
}

}  // namespace trainerd::io
