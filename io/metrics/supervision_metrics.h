#pragma once

#include <set>
#include <string>
#include <utility>

#include "io/metrics/families.h"
#include "io/records/records.h"

namespace trainerd::io {

/// Findings of the supervision of ranks and nodes: ranks that hang, are slow or differ from their replicas,
/// lost nodes, and findings before the first step. Also the duration of the last recovery.
class SupervisionMetrics {
 public:
  explicit SupervisionMetrics(prometheus::Registry& r)
      : hangs_(counter(r, "trainerd_hangs_total",
                       "Times that this process found training held up, by what held it up.")),
        stragglers_(gauge(r, "trainerd_straggler_ratio",
                          "Of a rank that is slow: its seconds of computation per step over the median of "
                          "its pipeline stage, less 1; absent for others.")),
        corruptions_(counter(r, "trainerd_corruptions_total",
                             "Times that what a rank holds was found to differ from its replicas, or what it "
                             "computes from the same computed again, by rank.")),
        spikes_(counter(r, "trainerd_spikes_total",
                        "Times that a step's loss or gradients were out of line since the process began, by "
                        "what was done about it.")),
        findings_(counter(r, "trainerd_preflight_findings_total",
                          "Findings before the first step that ended nothing, by what was looked at: device, "
                          "storage, clock, link.")),
        link_latency_(gauge(r, "trainerd_link_latency_seconds",
                            "One-way time of a short message between ranks of two nodes, measured before the "
                            "first step.")),
        link_bandwidth_(gauge(r, "trainerd_link_bytes_per_second",
                              "Bandwidth between ranks of two nodes, one way, while the other ranks of these "
                              "nodes send too; measured before the first step.")),
        recovery_(gauge(r, "trainerd_recovery_seconds",
                        "Seconds from the notice of the last failure to the beginning of the next step; "
                        "absent before the first recovery.")),
        spares_(gauge(r, "trainerd_spares",
                      "Spare nodes that wait to take a lost node's place; absent in a job of one node.")),
        lost_nodes_(counter(r, "trainerd_nodes_lost_total",
                            "Nodes that this run lost since the process began; absent in a job of one "
                            "node.")) {}
  /// Creates the counters of all possible kinds, so that they start at 0.
  void begin() {
    for (const char* kind :
         {"stopped", "asleep", "spinning", "link", "stuck", "mismatch", "deadlock", "disk", "data", "meet"})
      hangs_.Add({{"kind", kind}});
    for (const char* action : {"retry", "skip", "rollback"}) spikes_.Add({{"action", action}});
    for (const char* part : {"device", "storage", "clock", "link"}) findings_.Add({{"part", part}});
  }
  void on_hang(const HangRecord& record) { hangs_.Add({{"kind", record.kind}}).Increment(); }
  void on_straggler(const StragglerRecord& record) {
    prometheus::Gauge& ratio = stragglers_.Add({{"rank", std::to_string(record.rank)}});
    if (record.excess > 0) {
      ratio.Set(record.excess);
      slow_.insert(&ratio);
    } else {
      slow_.erase(&ratio);
      stragglers_.Remove(&ratio);
    }
  }
  void on_corruption(const CorruptionRecord& record) {
    for (const std::int64_t rank : record.ranks)
      corruptions_.Add({{"rank", std::to_string(rank)}}).Increment();
  }
  void on_spike(const SpikeRecord& record) { spikes_.Add({{"action", record.action}}).Increment(); }
  void on_preflight(const PreflightRecord& record) { findings_.Add({{"part", record.part}}).Increment(); }
  void on_link(const LinkRecord& record) {
    const prometheus::Labels labels{{"from_rank", std::to_string(record.from_rank)},
                                    {"to_rank", std::to_string(record.to_rank)},
                                    {"from_node", std::to_string(record.from_node)},
                                    {"to_node", std::to_string(record.to_node)}};
    link_latency_.Add(labels).Set(record.latency_seconds);
    link_bandwidth_.Add(labels).Set(record.bytes_per_second);
  }
  void on_recovery(const Recovery& recovery) { recovery_.Add({}).Set(recovery.total_seconds); }
  void on_nodes(const NodesRecord& record) {
    spares_.Add({}).Set(static_cast<double>(record.spares));
    raise_to(lost_nodes_.Add({}), static_cast<double>(record.lost));
  }
  /// The slow ranks' workers have been replaced.
  void on_restart() {
    for (prometheus::Gauge* ratio : std::exchange(slow_, {})) stragglers_.Remove(ratio);
  }

 private:
  prometheus::Family<prometheus::Counter>& hangs_;
  prometheus::Family<prometheus::Gauge>& stragglers_;
  std::set<prometheus::Gauge*> slow_;
  prometheus::Family<prometheus::Counter>& corruptions_;
  prometheus::Family<prometheus::Counter>& spikes_;
  prometheus::Family<prometheus::Counter>& findings_;
  prometheus::Family<prometheus::Gauge>&link_latency_, &link_bandwidth_;
  prometheus::Family<prometheus::Gauge>& recovery_;
  prometheus::Family<prometheus::Gauge>& spares_;
  prometheus::Family<prometheus::Counter>& lost_nodes_;
};

}  // namespace trainerd::io
