#include "io/records/records.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "io/records/older_logs.h"
#include "io/text/json.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

// JSON has no NaN or infinity: both are written as null, and null is read as NaN.
double real_member(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member(object, key);
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!value.is_number()) throw JsonError("\"" + std::string(key) + "\" is not a number");
  return value.get<double>();
}

std::vector<double> reals_member(const nlohmann::json& object, const char* key) {
  const nlohmann::json& values = member(object, key);
  if (!values.is_array()) throw JsonError("\"" + std::string(key) + "\" is not an array");
  std::vector<double> reals;
  for (const nlohmann::json& value : values) reals.push_back(real_member({{key, value}}, key));
  return reals;
}

bool bool_member(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member(object, key);
  if (!value.is_boolean()) throw JsonError("\"" + std::string(key) + "\" is not true or false");
  return value.get<bool>();
}

base::TimeLedger ledger_of(const nlohmann::json& time) {
  base::TimeLedger ledger;
  // Logs of older versions have one figure for communication on all axes, most of which is data-parallel.
  const bool one_axis = time.contains("exposed_communication");
  if (one_axis) ledger[base::LedgerPart::exposed_dp] = real_member(time, "exposed_communication");
  for (const base::LedgerPartInfo& part : base::kLedgerParts)
    if ((!one_axis || *part.axis == 0) && (in_older_logs(part.part) || time.contains(part.name)))
      ledger[part.part] = real_member(time, part.name);
  return ledger;
}

constexpr const char* kEvaluation = "evaluation";
constexpr const char* kCheckpoint = "checkpoint";
constexpr const char* kAverages = "averages";

constexpr std::array<const char*, 20> kNotices{"start",   "resume",    "change",   "warning",    "stop",
                                               "failure", "finish",    "restart",  "durable",    "node",
                                               "hang",    "straggler", "injected", "corruption", "withdrawn",
                                               "spike",   "recovered", "graphs",   "device",     "overflow"};

std::vector<std::string> strings_of(const nlohmann::json& list) {
  if (!list.is_array()) throw JsonError("\"details\" is not a list");
  std::vector<std::string> strings;
  for (const nlohmann::json& item : list) {
    if (!item.is_string()) throw JsonError("an item of \"details\" is not a string");
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

// Rounded to milliseconds.
void add_wall_time(nlohmann::ordered_json& line, double wall_time) {
  if (wall_time > 0) line["wall_time"] = std::round(1000 * wall_time) / 1000;
}

double wall_time_of(const nlohmann::json& line) {
  return line.contains("wall_time") ? real_member(line, "wall_time") : 0;
}

nlohmann::ordered_json object_of(const EarlierAttempt& r) {
  nlohmann::ordered_json object{{"last_step", r.last_step}, {"lost_seconds", r.lost_seconds}};
  add_wall_time(object, r.wall_time);
  return object;
}

Recovery recovery_of(const nlohmann::json& object) {
  return {.noticed = real_member(object, "noticed"),
          .decide_seconds = real_member(object, "decide_seconds"),
          .ready_seconds = real_member(object, "ready_seconds"),
          .groups_seconds = real_member(object, "groups_seconds"),
          .total_seconds = real_member(object, "total_seconds")};
}

EarlierAttempt earlier_of(const nlohmann::json& object) {
  return {.last_step = int_member(object, "last_step"),
          .lost_seconds = real_member(object, "lost_seconds"),
          .wall_time = wall_time_of(object)};
}

nlohmann::ordered_json object_of(const PairRewards& r) {
  return {{"margin", r.margin}, {"accuracy", r.accuracy}, {"chosen", r.chosen}, {"rejected", r.rejected}};
}

std::optional<PairRewards> rewards_of(const nlohmann::json& object) {
  if (!object.contains("rewards")) return std::nullopt;
  const nlohmann::json& rewards = member(object, "rewards");
  return PairRewards{.margin = real_member(rewards, "margin"),
                     .accuracy = real_member(rewards, "accuracy"),
                     .chosen = real_member(rewards, "chosen"),
                     .rejected = real_member(rewards, "rejected")};
}

// Members of an evaluation or of one of its sets. Perplexity is written for readers only; it follows from the
// loss and is not read back.
template <class Record>
nlohmann::ordered_json loss_object(const Record& r) {
  nlohmann::ordered_json object{{"loss", r.loss}, {"tokens", r.tokens}};
  if (r.rewards) object["rewards"] = object_of(*r.rewards);
  else object["perplexity"] = perplexity(r.loss);
  if (r.bits_per_byte) object["bits_per_byte"] = *r.bits_per_byte;
  return object;
}

std::optional<double> bits_per_byte_of(const nlohmann::json& object) {
  if (!object.contains("bits_per_byte")) return std::nullopt;
  return real_member(object, "bits_per_byte");
}

nlohmann::ordered_json object_of(const EvaluationRecord& r) {
  nlohmann::ordered_json line{{"event", kEvaluation}, {"step", r.step}};
  if (r.averaged) line["weights"] = kAverages;
  line.update(loss_object(r));
  line["seconds"] = r.seconds;
  for (const ValidationRecord& set : r.sets) {
    nlohmann::ordered_json item{{"set", set.set}};
    item.update(loss_object(set));
    line["sets"].push_back(std::move(item));
  }
  for (const ChoiceRecord& set : r.choices)
    line["choices"].push_back({{"set", set.set},
                               {"questions", set.questions},
                               {"accuracy", set.accuracy},
                               {"accuracy_norm", set.accuracy_norm}});
  add_wall_time(line, r.wall_time);
  return line;
}

const nlohmann::json& list_of(const nlohmann::json& line, const char* key) {
  static const nlohmann::json kNone = nlohmann::json::array();
  const nlohmann::json& list = line.contains(key) ? line.at(key) : kNone;
  if (!list.is_array()) throw JsonError("\"" + std::string(key) + "\" is not a list");
  return list;
}

EvaluationRecord evaluation_of(const nlohmann::json& line) {
  EvaluationRecord r{.step = int_member(line, "step"),
                     .loss = real_member(line, "loss"),
                     .tokens = int_member(line, "tokens"),
                     .seconds = real_member(line, "seconds"),
                     .wall_time = wall_time_of(line),
                     .bits_per_byte = bits_per_byte_of(line),
                     .rewards = rewards_of(line),
                     .averaged = line.contains("weights") && string_member(line, "weights") == kAverages};
  for (const nlohmann::json& set : list_of(line, "sets"))
    r.sets.push_back({.set = string_member(set, "set"),
                      .loss = real_member(set, "loss"),
                      .tokens = int_member(set, "tokens"),
                      .bits_per_byte = bits_per_byte_of(set),
                      .rewards = rewards_of(set)});
  for (const nlohmann::json& set : list_of(line, "choices"))
    r.choices.push_back({.set = string_member(set, "set"),
                         .questions = int_member(set, "questions"),
                         .accuracy = real_member(set, "accuracy"),
                         .accuracy_norm = real_member(set, "accuracy_norm")});
  return r;
}

nlohmann::ordered_json object_of(const CheckpointRecord& r) {
  nlohmann::ordered_json line{{"event", kCheckpoint},
                              {"step", r.step},
                              {"bytes", r.bytes},
                              {"snapshot_seconds", r.snapshot_seconds},
                              {"write_seconds", r.write_seconds},
                              {"path", r.path}};
  add_wall_time(line, r.wall_time);
  return line;
}

nlohmann::ordered_json object_of(const NoticeRecord& r) {
  nlohmann::ordered_json line{
      {"event", name_of(r.kind)}, {"step", r.step}, {"message", r.message}, {"details", r.details}};
  if (r.earlier) line["earlier"] = object_of(*r.earlier);
  if (r.start_seconds > 0) line["start_seconds"] = r.start_seconds;
  if (r.recovery)
    line["recovery"] = {{"noticed", r.recovery->noticed},
                        {"decide_seconds", r.recovery->decide_seconds},
                        {"ready_seconds", r.recovery->ready_seconds},
                        {"groups_seconds", r.recovery->groups_seconds},
                        {"total_seconds", r.recovery->total_seconds}};
  add_wall_time(line, r.wall_time);
  return line;
}

}  // namespace

std::int64_t RunInfo::tokens_through(std::int64_t step) const {
  std::int64_t sum = 0;
  for (const auto& [count, tokens] : ramp) {
    const std::int64_t taken = std::min(count, step);
    sum += taken * tokens;
    step -= taken;
  }
  return sum + step * tokens_per_step;
}

double perplexity(double loss) { return std::exp(loss); }

const char* name_of(CadenceRecord::Source source) {
  constexpr std::array kSources{"given", "cluster", "history"};
  return kSources.at(static_cast<std::size_t>(source));
}

PredictionTerm::Kind prediction_kind(std::string_view name) {
  if (name == "step_seconds") return PredictionTerm::Kind::step_seconds;
  return name == "memory_bytes" ? PredictionTerm::Kind::memory_bytes : PredictionTerm::Kind::part_seconds;
}

const char* name_of(RestoreTier tier) {
  constexpr std::array<const char*, 4> kTiers{"start", "disk", "memory", "partner"};
  return kTiers.at(static_cast<std::size_t>(tier));
}

const char* name_of(NoticeKind kind) { return kNotices.at(static_cast<std::size_t>(kind)); }

std::string to_json_line(const StepRecord& record) {
  // Numbers are written with the shortest digits that read back to the same bits.
  nlohmann::ordered_json line;
  line["step"] = record.step;
  line["tokens"] = record.tokens;
  line["loss"] = record.loss;
  if (record.z_loss) line["z_loss"] = *record.z_loss;
  if (record.expert_balance) line["expert_balance"] = *record.expert_balance;
  if (!record.expert_load.empty()) line["expert_load"] = record.expert_load;
  if (record.rewards) line["rewards"] = object_of(*record.rewards);
  line["grad_norm"] = record.grad_norm;
  for (const auto& [group, norm] : record.grad_norms) line["grad_norms"][group] = norm;
  line["learning_rate"] = record.learning_rate;
  if (record.skipped) line["skipped"] = true;
  if (record.loss_scale) line["loss_scale"] = *record.loss_scale;
  if (record.overflow) line["overflow"] = true;
  line["step_seconds"] = record.step_seconds;
  line["tokens_per_second"] = record.tokens_per_second;
  if (record.mfu) line["mfu"] = *record.mfu;
  nlohmann::ordered_json& time = line["time"];
  for (const base::LedgerPartInfo& part : base::kLedgerParts) time[part.name] = record.time[part.part];
  line["widened_gemms"] = record.widened_gemms;
  line["reference_gemms"] = record.reference_gemms;
  if (record.own_attention > 0) line["own_attention"] = record.own_attention;
  if (record.missed_gemm_choices > 0) line["missed_gemm_choices"] = record.missed_gemm_choices;
  if (record.attention_fallbacks > 0) line["attention_fallbacks"] = record.attention_fallbacks;
  add_wall_time(line, record.wall_time);
  return to_text(line);
}

StepRecord parse_step_record(const std::string& text) {
  try {
    const nlohmann::json line = parse_json(text);
    StepRecord record;
    record.step = int_member(line, "step");
    record.tokens = int_member(line, "tokens");
    record.loss = real_member(line, "loss");
    if (line.contains("z_loss")) record.z_loss = real_member(line, "z_loss");
    if (line.contains("expert_balance")) record.expert_balance = real_member(line, "expert_balance");
    if (line.contains("expert_load")) record.expert_load = reals_member(line, "expert_load");
    record.rewards = rewards_of(line);
    record.grad_norm = real_member(line, "grad_norm");
    if (line.contains("grad_norms")) {
      const nlohmann::json& norms = member(line, "grad_norms");
      if (!norms.is_object()) throw JsonError("\"grad_norms\" is not an object");
      for (const auto& [group, norm] : norms.items())
        record.grad_norms.emplace_back(group, real_member(norms, group.c_str()));
    }
    record.learning_rate = real_member(line, "learning_rate");
    if (line.contains("skipped")) record.skipped = bool_member(line, "skipped");
    if (line.contains("loss_scale")) record.loss_scale = real_member(line, "loss_scale");
    if (line.contains("overflow")) record.overflow = bool_member(line, "overflow");
    record.step_seconds = real_member(line, "step_seconds");
    record.tokens_per_second = real_member(line, "tokens_per_second");
    if (line.contains("mfu")) record.mfu = real_member(line, "mfu");
    const nlohmann::json& time = member(line, "time");
    record.time = ledger_of(time);
    record.widened_gemms = int_member(line, "widened_gemms");
    if (line.contains("reference_gemms")) record.reference_gemms = int_member(line, "reference_gemms");
    if (line.contains("own_attention")) record.own_attention = int_member(line, "own_attention");
    if (line.contains("missed_gemm_choices"))
      record.missed_gemm_choices = int_member(line, "missed_gemm_choices");
    if (line.contains("attention_fallbacks"))
      record.attention_fallbacks = int_member(line, "attention_fallbacks");
    record.wall_time = wall_time_of(line);
    return record;
  } catch (const JsonError& e) {
    throw base::data_error(std::string("not a line of steps.jsonl: ") + e.what());
  }
}

std::string to_json_line(const SamplesRecord& record) {
  nlohmann::ordered_json line{
      {"step", record.step}, {"first", record.first}, {"count", record.count}, {"attempt", record.attempt}};
  if (!record.sources.empty()) line["sources"] = record.sources;
  if (record.counted_tokens) line["counted_tokens"] = *record.counted_tokens;
  return to_text(line);
}

SamplesRecord parse_samples_record(const std::string& text) {
  try {
    const nlohmann::json line = parse_json(text);
    SamplesRecord record{.step = int_member(line, "step"),
                         .first = int_member(line, "first"),
                         .count = int_member(line, "count"),
                         .attempt = int_member(line, "attempt")};
    if (line.contains("sources")) record.sources = sizes_member(line, "sources");
    if (line.contains("counted_tokens")) record.counted_tokens = int_member(line, "counted_tokens");
    return record;
  } catch (const JsonError& e) {
    throw base::data_error(std::string("not a line of samples.jsonl: ") + e.what());
  }
}

std::string to_json_line(const EventRecord& record) {
  return std::visit([](const auto& r) { return to_text(object_of(r)); }, record);
}

EventRecord parse_event_record(const std::string& text) {
  try {
    const nlohmann::json line = parse_json(text);
    const std::string event = string_member(line, "event");
    if (event == kEvaluation) return evaluation_of(line);
    if (event == kCheckpoint)
      return CheckpointRecord{.step = int_member(line, "step"),
                              .bytes = int_member(line, "bytes"),
                              .snapshot_seconds = real_member(line, "snapshot_seconds"),
                              .write_seconds = real_member(line, "write_seconds"),
                              .path = string_member(line, "path"),
                              .wall_time = wall_time_of(line)};
    for (std::size_t kind = 0; kind < kNotices.size(); ++kind)
      if (event == kNotices[kind])
        return NoticeRecord{
            .kind = static_cast<NoticeKind>(kind),
            .step = int_member(line, "step"),
            .message = string_member(line, "message"),
            .details = strings_of(member(line, "details")),
            .wall_time = wall_time_of(line),
            .earlier =
                line.contains("earlier") ? std::optional(earlier_of(member(line, "earlier"))) : std::nullopt,
            .start_seconds = line.contains("start_seconds") ? real_member(line, "start_seconds") : 0,
            .recovery = line.contains("recovery") ? std::optional(recovery_of(member(line, "recovery")))
                                                  : std::nullopt};
    throw JsonError("there is no event \"" + event + "\"");
  } catch (const JsonError& e) {
    throw base::data_error(std::string("not a line of events.jsonl: ") + e.what());
  }
}

void add_to(WallLedger& ledger, const NoticeRecord& notice) {
  const EarlierAttempt earlier = notice.earlier.value_or(EarlierAttempt{});
  const auto begin = [&](WallLedger::Begin what) {
    ledger.begin(what, notice.wall_time - notice.start_seconds, notice.step, earlier.wall_time,
                 earlier.lost_seconds);
  };
  switch (notice.kind) {
    case NoticeKind::start:
    case NoticeKind::resume: return begin(WallLedger::Begin::process);
    case NoticeKind::restart: return begin(WallLedger::Begin::workers);
    case NoticeKind::stop:
    case NoticeKind::failure:
    case NoticeKind::finish: return ledger.end(notice.wall_time);
    case NoticeKind::change:
    case NoticeKind::warning:
    case NoticeKind::durable:
    case NoticeKind::node:
    case NoticeKind::hang:
    case NoticeKind::straggler:
    case NoticeKind::injected:
    case NoticeKind::corruption:
    case NoticeKind::withdrawn:
    case NoticeKind::spike:
    case NoticeKind::recovered:
    case NoticeKind::graphs:
    case NoticeKind::device:
    case NoticeKind::overflow: return;
  }
}

}  // namespace trainerd::io
