#include "io/metrics/rank_metrics.h"

#include <string>

namespace trainerd::io {

RankMetrics::RankMetrics(prometheus::Registry& registry)
    : step_(gauge(registry, "trainerd_rank_step", "The last step that the rank has done.")),
      step_seconds_(gauge(registry, "trainerd_rank_step_seconds",
                          "Seconds per step of the rank: mean of its steps within about a second.")),
      used_(gauge(registry, "trainerd_rank_memory_used_bytes",
                  "The most that the rank's step has taken of its planned memory.")),
      planned_(gauge(registry, "trainerd_rank_memory_planned_bytes", "What the plan says of that memory.")),
      resident_(gauge(registry, "trainerd_rank_resident_bytes", "Host memory of the rank's process.")),
      steps_(counter(registry, "trainerd_rank_steps_total", "Steps done by the rank.")),
      time_(counter(registry, "trainerd_rank_time_seconds_total",
                    "Wall time of the rank's steps by what it was spent on.")),
      reads_{&counter(registry, "trainerd_data_requests_total",
                      "Requests of the rank to the object store of its data, tries included."),
             &counter(registry, "trainerd_data_retries_total",
                      "Requests of the rank that were tried again, after failures or new credentials."),
             &counter(registry, "trainerd_data_fetched_bytes_total",
                      "Bytes of data that the rank has fetched from the object store."),
             &counter(registry, "trainerd_data_cached_bytes_total",
                      "Bytes of data that the rank has read from the node's cache instead."),
             &counter(registry, "trainerd_data_cache_failures_total",
                      "Blocks of data that the node's cache could not keep for the rank, or had damaged."),
             &counter(registry, "trainerd_data_credentials_total",
                      "Times that the rank has got new credentials for the object store.")} {}

RankMetrics::Rank& RankMetrics::rank(std::int64_t number) {
  const auto [known, is_new] = ranks_.try_emplace(number);
  Rank& rank = known->second;
  if (!is_new) return rank;
  const prometheus::Labels labels{{"rank", std::to_string(number)}};
  rank.step = &step_.Add(labels);
  rank.step_seconds = &step_seconds_.Add(labels);
  rank.used = &used_.Add(labels);
  rank.planned = &planned_.Add(labels);
  rank.steps = &steps_.Add(labels);
  for (const base::LedgerPartInfo& part : base::kLedgerParts) {
    prometheus::Labels with_part = labels_of(part);
    with_part.insert(labels.begin(), labels.end());
    rank.time.at(static_cast<std::size_t>(part.part)) = &time_.Add(with_part);
  }
  return rank;
}

void RankMetrics::on_status(const RankStatusRecord& record) {
  Rank& r = rank(record.rank);
  r.step->Set(static_cast<double>(record.step));
  r.step_seconds->Set(record.step_seconds);
  r.used->Set(static_cast<double>(record.memory_used_bytes));
  r.planned->Set(static_cast<double>(record.memory_planned_bytes));
  if (record.resident_bytes > 0)
    resident_.Add({{"rank", std::to_string(record.rank)}}).Set(static_cast<double>(record.resident_bytes));
  raise_to(*r.steps, r.steps_before + static_cast<double>(record.steps));
  if (record.reads) {
    const ObjectReads& reads = *record.reads;
    const std::array<std::int64_t, 6> counts{reads.requests,     reads.retries,        reads.bytes,
                                             reads.cached_bytes, reads.cache_failures, reads.renewals};
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (r.reads[i] == nullptr) r.reads[i] = &reads_[i]->Add({{"rank", std::to_string(record.rank)}});
      raise_to(*r.reads[i], r.reads_before[i] + static_cast<double>(counts[i]));
    }
  }
  for (const base::LedgerPartInfo& part : base::kLedgerParts) {
    const auto i = static_cast<std::size_t>(part.part);
    raise_to(*r.time.at(i), r.time_before.at(i) + record.time[part.part]);
  }
}

void RankMetrics::on_restart() {
  for (auto& [number, r] : ranks_) {
    r.steps_before = r.steps->Value();
    for (std::size_t i = 0; i < r.reads.size(); ++i)
      if (r.reads[i] != nullptr) r.reads_before[i] = r.reads[i]->Value();
    for (std::size_t i = 0; i < r.time.size(); ++i) r.time_before.at(i) = r.time.at(i)->Value();
  }
}

}  // namespace trainerd::io
