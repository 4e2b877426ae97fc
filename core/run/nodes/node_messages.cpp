#include "core/run/nodes/node_messages.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/run/nodes/state_json.h"
#include "core/run/wire/hashes_json.h"
#include "core/run/wire/json_text.h"
#include "core/run/wire/judgement_json.h"
#include "core/run/wire/order_json.h"
#include "core/run/wire/slices_json.h"
#include "core/version/version.h"

namespace trainerd::core::run {
namespace {

using nlohmann::json;

json node_body(const Hello& m) {
  return {{"type", "hello"},  {"node", m.node},    {"nodes", m.nodes},        {"version", m.version},
          {"host", m.host},   {"job", m.job_yaml}, {"isa", to_string(m.isa)}, {"agent", m.agent},
          {"spare", m.spare}, {"lost", m.lost},    {"folders", m.folders},    {"faults_done", m.faults_done}};
}
json node_body(const BeatHello& m) { return {{"type", "beats"}, {"agent", m.agent}}; }
json node_body(const TakePlace& m) { return {{"type", "take_place"}, {"node", m.node}}; }
json node_body(const Resize& m) { return {{"type", "resize"}, {"from_disk", m.from_disk}}; }
json node_body(const WaitAsSpare&) { return {{"type", "wait_as_spare"}}; }
json node_body(const Go& m) {
  return {{"type", "go"},
          {"run", m.run},
          {"last_good", m.last_good},
          {"step", m.step},
          {"cursor", m.cursor},
          {"tokens", m.tokens},
          {"order", order_to_json(m.order)},
          {"isa", to_string(m.isa)},
          {"evaluate_first", m.evaluate_first},
          {"resume", m.resume_path},
          {"attempt", m.attempt},
          {"from_memory", m.from_memory},
          {"reason", m.reason},
          {"folders", m.folders},
          {"fetch", m.fetch},
          {"nodes", m.nodes},
          {"layout", m.layout},
          {"faults_done", m.faults_done},
          {"wall_seconds", m.wall_seconds},
          {"cut", to_json(m.cut)},
          {"sources", to_json(m.sources)},
          {"head", m.head},
          {"spikes", to_json(m.spikes)}};
}
json node_body(const ShowState& m) { return {{"type", "show_state"}, {"number", m.number}}; }
json node_body(const StateShown& m) { return to_json(m); }
json node_body(const FaultInjected& m) {
  return {{"type", "fault"},      {"id", m.id},
          {"message", m.message}, {"at_agent", m.at_agent ? job::word_of(*m.at_agent) : ""},
          {"seconds", m.seconds}, {"rank", m.rank},
          {"xid", m.xid}};
}
json node_body(const CopiesHashed& m) { return to_json(m); }
json node_body(const ResultsDiffer& m) { return to_json(m); }
json node_body(const Regroup& m) { return {{"type", "regroup"}, {"attempt", m.attempt}}; }
json node_body(const Held& m) {
  json copies = json::array();
  for (const HeldCopy& c : m.copies) copies.push_back({c.node, c.step, c.cursor, c.tokens, c.self_contained});
  return {{"type", "held"},
          {"attempt", m.attempt},
          {"steps", m.steps},
          {"taken", m.taken},
          {"self_contained", m.self_contained},
          {"copies", copies}};
}
json node_body(const CopySnapshot& m) {
  return {
      {"type", "copy_snapshot"}, {"step", m.step}, {"attempt", m.attempt}, {"kept_by_all", m.kept_by_all}};
}
json node_body(const FetchFailed& m) {
  return {{"type", "fetch_failed"}, {"step", m.step}, {"attempt", m.attempt}};
}
json node_body(const SnapshotCopied& m) {
  return {{"type", "snapshot_copied"}, {"step", m.step}, {"attempt", m.attempt}, {"kept", m.kept}};
}
json node_body(const SaveHeld& m) { return {{"type", "save_held"}, {"step", m.step}}; }
json node_body(const Completed& m) {
  return {{"type", "completed"}, {"step", m.step}, {"path", m.path}, {"folder", m.folder}};
}
json node_body(const SaveDropped& m) {
  return {{"type", "save_dropped"}, {"step", m.step}, {"attempt", m.attempt}};
}
json node_body(const SaveFailed& m) {
  return {{"type", "save_failed"},
          {"step", m.step},
          {"message", m.message},
          {"retry_seconds", m.retry_seconds},
          {"failures", m.failures}};
}
json node_body(const End& m) {
  return {{"type", "end"},        {"failed", m.failed},      {"kind", base::to_string(m.kind)},
          {"message", m.message}, {"signal", m.stop_signal}, {"excludes", m.excludes}};
}
json node_body(const NodeReady& m) {
  json rates = json::array();
  for (const RankRate& rate : m.rates) rates.push_back({rate.rank, rate.device, rate.gemm_flops});
  json links = json::array();
  for (const LinkTime& l : m.links)
    links.push_back({l.from_rank, l.to_rank, l.latency_seconds, l.bytes_per_second});
  json canaries = json::array();
  for (const CanaryResult& c : m.canaries) canaries.push_back({c.rank, c.kind, c.loss, c.gradients});
  return {{"type", "ready"},
          {"canaries", canaries},
          {"attempt", m.attempt},
          {"threads", m.threads},
          {"data_fingerprint", m.data_fingerprint},
          {"evaluated", m.evaluated},
          {"rates", rates},
          {"links", links},
          {"storage", m.storage},
          {"wall_seconds", m.wall_seconds},
          {"clock_ahead", m.clock_ahead}};
}
json node_body(const NodeFinished& m) { return {{"type", "finished"}, {"attempt", m.attempt}}; }
json node_body(const ShardsSaved& m) {
  json shards = json::array();
  for (const auto& [shard, slices] : m.shards)
    shards.push_back({{"file", shard.file},
                      {"bytes", shard.bytes},
                      {"xxh3", shard.xxh3},
                      {"slices", slices_to_json(slices)}});
  return {{"type", "shards"},
          {"step", m.step},
          {"first", m.first_rank},
          {"shards", shards},
          {"snapshot_seconds", m.snapshot_seconds},
          {"write_seconds", m.write_seconds},
          {"attempt", m.attempt}};
}
json node_body(const NodeFailed& m) {
  return {{"type", "failed"}, {"kind", base::to_string(m.kind)}, {"message", m.message}, {"weight", m.weight},
          {"death", m.death}, {"cause", m.cause.what},           {"own", m.cause.own},   {"retry", m.retry}};
}
json node_body(const DurableBegin& m) {
  return {{"type", "durable_begin"}, {"step", m.step}, {"folder", m.folder}, {"target", m.target}};
}
json node_body(const DurableDrop& m) { return {{"type", "durable_drop"}, {"folder", m.folder}}; }
json node_body(const DurableShards& m) {
  return {{"type", "durable_shards"}, {"folder", m.folder}, {"ranks", m.ranks}, {"bytes", m.bytes}};
}
json node_body(const DurableFailed& m) {
  return {{"type", "durable_failed"},
          {"step", m.step},
          {"folder", m.folder},
          {"message", m.message},
          {"retry_seconds", m.retry_seconds},
          {"failures", m.failures},
          {"gone", m.gone}};
}
json node_body(const HangSuspected& m) { return {{"type", "hang_suspected"}, {"attempt", m.attempt}}; }
json node_body(const ShowRanks& m) {
  return {{"type", "show_ranks"}, {"attempt", m.attempt}, {"number", m.number}};
}
json node_body(const RankSeen& m) {
  return {{"type", "rank_seen"}, {"attempt", m.attempt}, {"number", m.number}, {"sight", to_json(m.sight)}};
}
json node_body(const RankTimes& m) {
  json ranks = json::array();
  for (const RankTime& time : m.ranks) ranks.push_back({time.rank, time.steps, time.compute_seconds});
  return {{"type", "rank_times"}, {"attempt", m.attempt}, {"ranks", ranks}};
}
json node_body(const RanksDoing& m) {
  json ranks = json::array();
  for (const io::RankDoingRecord& r : m.ranks) ranks.push_back({r.rank, r.doing, r.last, r.seconds});
  return {{"type", "ranks_doing"}, {"attempt", m.attempt}, {"ranks", ranks}};
}
json node_body(const DeviceFound& m) {
  return {{"type", "device_found"},
          {"rank", m.rank},
          {"kind", m.finding.kind},
          {"text", m.finding.text},
          {"error", m.finding.error}};
}
json node_body(const StopAsked& m) {
  return {{"type", "stop"}, {"reason", m.request.reason}, {"signal", m.request.exit_signal}};
}

base::ErrorKind kind_in(const json& j) {
  base::ErrorKind kind{};
  const auto word = j.at("kind").get<std::string>();
  if (!base::parse_error_kind(word, kind)) unknown_message("kind/" + word);
  return kind;
}

kernels::Isa isa_in(const json& j) {
  kernels::Isa isa{};
  const auto word = j.at("isa").get<std::string>();
  if (!kernels::parse_isa(word, isa)) unknown_message("isa/" + word);
  return isa;
}

}  // namespace

std::vector<ShardsSaved> in_parts(ShardsSaved whole, std::size_t boxes) {
  std::vector<io::WrittenShard> shards = std::exchange(whole.shards, {});
  std::vector<ShardsSaved> parts;
  std::size_t taken = 0;  // slices in the last part
  for (io::WrittenShard& shard : shards) {
    const std::size_t more = shard.slices.size();
    if (parts.empty() || taken + more > boxes) {
      parts.push_back(whole);
      taken = 0;
    }
    taken += more;
    parts.back().shards.push_back(std::move(shard));
    ++whole.first_rank;
  }
  return parts;
}

std::string encode(const Hello& hello) { return to_message(node_body(hello)); }

std::string encode(const BeatHello& hello) { return to_message(node_body(hello)); }

std::string encode(const NodeMessage& message) {
  return std::visit([](const auto& m) { return to_message(node_body(m)); }, message);
}

namespace {

NodeReady node_ready(const json& j) {
  NodeReady m{j.at("attempt"), j.at("threads"), j.at("data_fingerprint"), j.at("evaluated")};
  for (const json& rate : j.at("rates")) m.rates.push_back({rate.at(0), rate.at(1), rate.at(2)});
  for (const json& l : j.at("links")) m.links.push_back({l.at(0), l.at(1), l.at(2), l.at(3)});
  for (const json& c : j.at("canaries")) m.canaries.push_back({c.at(0), c.at(1), c.at(2), c.at(3)});
  m.storage = j.at("storage");
  m.wall_seconds = j.at("wall_seconds");
  m.clock_ahead = j.at("clock_ahead");
  return m;
}

}  // namespace

Hello decode_hello(const std::string& text) {
  return from_message(text, [](const json& j, const std::string& type) {
    if (type != "hello") unknown_message(type);
    Hello m{.node = j.at("node"),
            .nodes = 1,
            .version = j.at("version"),
            .host = j.at("host"),
            .job_yaml = {},
            .isa = {},
            .agent = {}};
    if (m.version != version::version()) return m;
    m.nodes = j.at("nodes");
    m.job_yaml = j.at("job");
    m.isa = isa_in(j);
    m.agent = j.at("agent");
    m.spare = j.at("spare");
    m.lost = j.at("lost");
    m.folders = j.at("folders").get<std::map<std::int64_t, std::int64_t>>();
    m.faults_done = j.at("faults_done").get<std::vector<std::string>>();
    return m;
  });
}

std::optional<BeatHello> decode_beat_hello(const std::string& text) {
  return from_message(text, [](const json& j, const std::string& type) -> std::optional<BeatHello> {
    if (type != "beats") return std::nullopt;
    return BeatHello{j.at("agent")};
  });
}

NodeMessage decode_node_message(const std::string& text) {
  return from_message(text, [](const json& j, const std::string& type) -> NodeMessage {
    if (type == "go")
      return Go{j.at("run"),
                j.at("last_good"),
                j.at("step"),
                j.at("cursor"),
                j.at("tokens"),
                order_from(j.at("order")),
                isa_in(j),
                j.at("evaluate_first"),
                j.at("resume"),
                j.at("attempt"),
                j.at("from_memory"),
                j.at("reason"),
                j.at("folders").get<std::map<std::int64_t, std::int64_t>>(),
                j.at("fetch"),
                j.at("nodes"),
                j.at("layout"),
                j.at("faults_done"),
                spike_history_from(j.at("spikes")),
                j.at("wall_seconds"),
                cut_from(j.at("cut")),
                sources_from(j.at("sources")),
                j.at("head")};
    if (type == "show_state") return ShowState{j.at("number")};
    if (type == "state_shown") return state_shown_from(j);
    if (type == "take_place") return TakePlace{j.at("node")};
    if (type == "resize") return Resize{j.at("from_disk")};
    if (type == "wait_as_spare") return WaitAsSpare{};
    if (type == "hashes") return copies_hashed_from(j);
    if (type == "differ") return results_differ_from(j);
    if (type == "fault")
      return FaultInjected{
          j.at("id"),      j.at("message"), job::fault_kind_of(j.at("at_agent").get<std::string>()),
          j.at("seconds"), j.at("rank"),    j.at("xid")};
    if (type == "ranks_doing") {
      RanksDoing m{j.at("attempt"), {}};
      for (const json& r : j.at("ranks")) m.ranks.push_back({r.at(0), r.at(1), r.at(2), r.at(3)});
      return m;
    }
    if (type == "device_found") return DeviceFound{j.at("rank"), {j.at("kind"), j.at("text"), j.at("error")}};
    if (type == "regroup") return Regroup{j.at("attempt")};
    if (type == "held") {
      Held m{j.at("attempt"), j.at("steps"), j.at("taken"), j.at("self_contained"), {}};
      for (const json& c : j.at("copies")) m.copies.push_back({c.at(0), c.at(1), c.at(2), c.at(3), c.at(4)});
      return m;
    }
    if (type == "copy_snapshot") return CopySnapshot{j.at("step"), j.at("attempt"), j.at("kept_by_all")};
    if (type == "fetch_failed") return FetchFailed{j.at("step"), j.at("attempt")};
    if (type == "snapshot_copied") return SnapshotCopied{j.at("step"), j.at("attempt"), j.at("kept")};
    if (type == "save_held") return SaveHeld{j.at("step")};
    if (type == "completed") return Completed{j.at("step"), j.at("path"), j.at("folder")};
    if (type == "save_dropped") return SaveDropped{j.at("step"), j.at("attempt")};
    if (type == "save_failed")
      return SaveFailed{j.at("step"), j.at("message"), j.at("retry_seconds"), j.at("failures")};
    if (type == "end")
      return End{j.at("failed"), kind_in(j), j.at("message"), j.at("signal"), j.at("excludes")};
    if (type == "ready") return node_ready(j);
    if (type == "finished") return NodeFinished{j.at("attempt")};
    if (type == "shards") {
      ShardsSaved m{j.at("step"),          j.at("first"),  {}, j.at("snapshot_seconds"),
                    j.at("write_seconds"), j.at("attempt")};
      for (const json& s : j.at("shards"))
        m.shards.push_back({{s.at("file"), s.at("bytes"), s.at("xxh3")}, slices_from(s.at("slices"))});
      return m;
    }
    if (type == "failed")
      return NodeFailed{kind_in(j),
                        j.at("message"),
                        j.at("weight"),
                        j.at("death"),
                        FailureCause{j.at("cause"), j.at("own")},
                        j.at("retry")};
    if (type == "durable_begin") return DurableBegin{j.at("step"), j.at("folder"), j.at("target")};
    if (type == "durable_drop") return DurableDrop{j.at("folder")};
    if (type == "durable_shards") return DurableShards{j.at("folder"), j.at("ranks"), j.at("bytes")};
    if (type == "durable_failed")
      return DurableFailed{j.at("step"),          j.at("folder"),   j.at("message"),
                           j.at("retry_seconds"), j.at("failures"), j.at("gone")};
    if (type == "hang_suspected") return HangSuspected{j.at("attempt")};
    if (type == "show_ranks") return ShowRanks{j.at("attempt"), j.at("number")};
    if (type == "rank_seen") return RankSeen{j.at("attempt"), j.at("number"), sight_from(j.at("sight"))};
    if (type == "rank_times") {
      RankTimes m{j.at("attempt"), {}};
      for (const json& t : j.at("ranks")) m.ranks.push_back({t.at(0), t.at(1), t.at(2)});
      return m;
    }
    if (type == "stop") return StopAsked{{j.at("reason"), j.at("signal")}};
    unknown_message(type);
  });
}

}  // namespace trainerd::core::run
