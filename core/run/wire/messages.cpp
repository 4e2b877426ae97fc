#include "core/run/wire/messages.h"

#include <nlohmann/json.hpp>

#include "core/run/wire/hashes_json.h"
#include "core/run/wire/json_text.h"
#include "core/run/wire/judgement_json.h"
#include "core/run/wire/layout_json.h"
#include "core/run/wire/order_json.h"
#include "core/run/wire/slices_json.h"

namespace trainerd::core::run {
namespace {

using nlohmann::json;

json body(const Start& m) {
  json held = json::array();
  for (const HeldShard& shard : m.held)
    held.push_back({{"bytes", shard.bytes}, {"slices", slices_to_json(shard.slices)}});
  return {{"type", "start"},
          {"layout", layout_to_json(m.layout)},
          {"node_first", m.node_first},
          {"node_count", m.node_count},
          {"attempt", m.attempt},
          {"held", held},
          {"gathered", m.gathered},
          {"newest_segment", m.newest_segment},
          {"busy_segments", m.busy_segments},
          {"rank", m.rank},
          {"job", m.job_yaml},
          {"resume", m.resume_path},
          {"step", m.step},
          {"cursor", m.cursor},
          {"tokens", m.tokens},
          {"reports", m.reports},
          {"evaluate_first", m.evaluate_first},
          {"rendezvous", m.rendezvous},
          {"token", m.token},
          {"interface", m.interface},
          {"gemm_algorithms", m.gemm_algorithms},
          {"data_content", m.data_content},
          {"weights", m.weights_path},
          {"order", order_to_json(m.order)},
          {"reference_path", m.reference_path},
          {"reference", m.reference},
          {"peak_flops", m.peak_flops},
          {"weights_content", m.weights_content},
          {"faults_done", m.faults_done},
          {"spikes", to_json(m.spikes)}};
}
json body(const Stop&) { return {{"type", "stop"}}; }
json body(const Drain&) { return {{"type", "drain"}}; }
json body(const SnapshotSaved& m) { return {{"type", "snapshot_saved"}, {"segment", m.segment}}; }
json body(const SaveEvery& m) { return {{"type", "save_every"}, {"seconds", m.seconds}}; }
json body(const SnapshotDelayed& m) { return {{"type", "snapshot_delayed"}, {"segment", m.segment}}; }
json body(const Ready& m) {
  json links = json::array();
  for (const LinkTime& l : m.links)
    links.push_back({l.from_rank, l.to_rank, l.latency_seconds, l.bytes_per_second});
  return {{"type", "ready"},
          {"device", m.device},
          {"threads", m.threads},
          {"peak_flops", m.peak_flops},
          {"slices", slices_to_json(m.slices)},
          {"borrowed", slices_to_json(m.borrowed)},
          {"environment", m.environment},
          {"data_fingerprint", m.data_fingerprint},
          {"gemm_algorithms", m.gemm_algorithms},
          {"pci_bus_id", m.pci_bus_id},
          {"data_tokens", m.data_tokens},
          {"groups_seconds", m.groups_seconds},
          {"reference", m.reference},
          {"gemm_flops", m.gemm_flops},
          {"links", links},
          {"canary", {m.canary.rank, m.canary.kind, m.canary.loss, m.canary.gradients}}};
}
json body(const io::StepRecord& m) {
  json step{{"type", "step"}, {"line", io::to_json_line(m)}, {"samples", {m.first_sample, m.samples}}};
  if (m.counted_tokens) step["counted_tokens"] = *m.counted_tokens;
  return step;
}
json body(const io::NoticeRecord& m) { return {{"type", "notice"}, {"line", io::to_json_line(m)}}; }
json body(const io::EvaluationRecord& m) { return {{"type", "evaluation"}, {"line", io::to_json_line(m)}}; }
json body(const io::EvaluationProgress& m) {
  return {{"type", "evaluating"}, {"step", m.step}, {"done", m.done}, {"batches", m.batches}};
}
json body(const ReferenceProgress& m) {
  return {{"type", "reference"}, {"done", m.done}, {"pairs", m.pairs}, {"seconds", m.seconds}};
}
json body(const StopNeeded& m) { return {{"type", "stop_needed"}, {"reason", m.reason}}; }
json body(const FaultInjected& m) {
  return {{"type", "fault"},      {"id", m.id},
          {"message", m.message}, {"at_agent", m.at_agent ? job::word_of(*m.at_agent) : ""},
          {"seconds", m.seconds}, {"rank", m.rank},
          {"xid", m.xid}};
}
json body(const CopiesHashed& m) { return to_json(m); }
json body(const ResultsDiffer& m) { return to_json(m); }
json body(const SpikeActed& m) { return to_json(m); }
json body(const SnapshotReady& m) {
  return {{"type", "snapshot"}, {"segment", m.segment}, {"memory", m.use == SnapshotUse::memory},
          {"bytes", m.bytes},   {"step", m.step},       {"cursor", m.cursor},
          {"tokens", m.tokens}, {"seconds", m.seconds}};
}
json body(const StepTrace& m) {
  json slices = json::array();
  for (const io::TraceSlice& s : m.slices)
    slices.push_back({s.name, s.category, s.process, s.row, s.start_seconds, s.seconds, s.numbers, s.label});
  return {{"type", "trace"}, {"step", m.step}, {"slices", slices}, {"last", m.last}};
}
json body(const io::RankStatusRecord& m) {
  json time = json::array();
  for (const base::LedgerPartInfo& part : base::kLedgerParts) time.push_back(m.time[part.part]);
  json reads = json::array();
  if (const auto& r = m.reads)
    reads = {r->requests, r->retries, r->bytes, r->cached_bytes, r->cache_failures, r->renewals};
  return {{"type", "rank_status"},
          {"reads", reads},
          {"rank", m.rank},
          {"step", m.step},
          {"steps", m.steps},
          {"step_seconds", m.step_seconds},
          {"time", time},
          {"memory_used", m.memory_used_bytes},
          {"memory_planned", m.memory_planned_bytes},
          {"resident", m.resident_bytes}};
}
json body(const MemoryUsed& m) { return {{"type", "memory"}, {"bytes", m.bytes}}; }
json body(const Failed& m) {
  return {{"type", "failed"}, {"kind", base::to_string(m.kind)}, {"message", m.message}, {"retry", m.retry}};
}
json body(const Finished& m) { return {{"type", "finished"}, {"step", m.step}, {"stopped", m.stopped}}; }

}  // namespace

std::string encode(const AgentMessage& message) {
  return std::visit([](const auto& m) { return to_message(body(m)); }, message);
}
std::string encode(const WorkerMessage& message) {
  return std::visit([](const auto& m) { return to_message(body(m)); }, message);
}

AgentMessage decode_agent_message(const std::string& text) {
  return from_message(text, [](const json& j, const std::string& type) -> AgentMessage {
    if (type == "start") {
      Start m{j.at("rank"),
              j.at("job"),
              j.at("resume"),
              j.at("step"),
              j.at("cursor"),
              j.at("tokens"),
              j.at("reports"),
              j.at("evaluate_first"),
              j.at("rendezvous"),
              j.at("token"),
              j.at("interface"),
              j.at("gemm_algorithms"),
              j.at("data_content"),
              j.at("weights"),
              order_from(j.at("order")),
              layout_from(j.at("layout")),
              j.at("node_first"),
              j.at("node_count"),
              j.at("attempt"),
              {},
              j.at("newest_segment"),
              j.at("busy_segments"),
              j.at("reference_path"),
              j.at("reference"),
              j.at("faults_done"),
              spike_history_from(j.at("spikes")),
              j.at("peak_flops"),
              j.at("weights_content")};
      m.gathered = j.at("gathered");
      for (const json& shard : j.at("held"))
        m.held.push_back({shard.at("bytes"), slices_from(shard.at("slices"))});
      return m;
    }
    if (type == "stop") return Stop{};
    if (type == "drain") return Drain{};
    if (type == "snapshot_saved") return SnapshotSaved{j.at("segment")};
    if (type == "save_every") return SaveEvery{j.at("seconds")};
    if (type == "snapshot_delayed") return SnapshotDelayed{j.at("segment")};
    unknown_message(type);
  });
}

WorkerMessage decode_worker_message(const std::string& text) {
  return from_message(text, [](const json& j, const std::string& type) -> WorkerMessage {
    if (type == "ready") {
      Ready m{j.at("device"),          j.at("threads"),
              j.at("peak_flops"),      slices_from(j.at("slices")),
              j.at("environment"),     j.at("data_fingerprint"),
              j.at("gemm_algorithms"), j.at("pci_bus_id"),
              j.at("data_tokens"),     slices_from(j.at("borrowed")),
              j.at("groups_seconds"),  j.at("reference"),
              j.at("gemm_flops")};
      for (const json& l : j.at("links")) m.links.push_back({l.at(0), l.at(1), l.at(2), l.at(3)});
      const json& canary = j.at("canary");
      m.canary = {canary.at(0), canary.at(1), canary.at(2), canary.at(3)};
      return m;
    }
    if (type == "step") {
      io::StepRecord m = io::parse_step_record(j.at("line"));
      m.first_sample = j.at("samples").at(0);
      m.samples = j.at("samples").at(1);
      if (j.contains("counted_tokens")) m.counted_tokens = j.at("counted_tokens").get<std::int64_t>();
      return m;
    }
    if (type == "evaluation") {
      const io::EventRecord event = io::parse_event_record(j.at("line"));
      if (const auto* evaluation = std::get_if<io::EvaluationRecord>(&event)) return *evaluation;
      unknown_message("evaluation/checkpoint");
    }
    if (type == "notice") {
      const io::EventRecord event = io::parse_event_record(j.at("line"));
      if (const auto* notice = std::get_if<io::NoticeRecord>(&event)) return *notice;
      unknown_message("notice/record");
    }
    if (type == "snapshot")
      return SnapshotReady{
          j.at("segment"), j.at("memory").get<bool>() ? SnapshotUse::memory : SnapshotUse::checkpoint,
          j.at("bytes"),   j.at("step"),
          j.at("cursor"),  j.at("tokens"),
          j.at("seconds")};
    if (type == "evaluating") return io::EvaluationProgress{j.at("step"), j.at("done"), j.at("batches")};
    if (type == "reference") return ReferenceProgress{j.at("done"), j.at("pairs"), j.at("seconds")};
    if (type == "stop_needed") return StopNeeded{j.at("reason")};
    if (type == "hashes") return copies_hashed_from(j);
    if (type == "differ") return results_differ_from(j);
    if (type == "spike") return spike_acted_from(j);
    if (type == "fault")
      return FaultInjected{
          j.at("id"),      j.at("message"), job::fault_kind_of(j.at("at_agent").get<std::string>()),
          j.at("seconds"), j.at("rank"),    j.at("xid")};
    if (type == "memory") return MemoryUsed{j.at("bytes")};
    if (type == "rank_status") {
      io::RankStatusRecord m{j.at("rank"), j.at("step"),        j.at("steps"),          j.at("step_seconds"),
                             {},           j.at("memory_used"), j.at("memory_planned"), j.at("resident")};
      for (const base::LedgerPartInfo& part : base::kLedgerParts)
        m.time[part.part] = j.at("time").at(static_cast<std::size_t>(part.part));
      if (const json& r = j.at("reads"); !r.empty())
        m.reads = io::ObjectReads{r.at(0), r.at(1), r.at(2), r.at(3), r.at(4), r.at(5)};
      return m;
    }
    if (type == "trace") {
      StepTrace m{j.at("step"), {}, j.at("last")};
      for (const json& s : j.at("slices"))
        m.slices.push_back({s.at(0), s.at(1), s.at(2), s.at(3), s.at(4), s.at(5), s.at(6), s.at(7)});
      return m;
    }
    if (type == "failed") {
      Failed m;
      if (!base::parse_error_kind(j.at("kind"), m.kind))
        unknown_message("failed/" + j.at("kind").get<std::string>());
      m.message = j.at("message");
      m.retry = j.at("retry");
      return m;
    }
    if (type == "finished") return Finished{j.at("step"), j.at("stopped")};
    unknown_message(type);
  });
}

}  // namespace trainerd::core::run
