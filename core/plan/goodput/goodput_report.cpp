#include "core/plan/goodput/goodput_report.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "io/text/json.h"

namespace trainerd::core::plan {
namespace {

using Json = nlohmann::ordered_json;

template <class... Values>
std::string formatted(const char* format, Values... values) {
  std::array<char, 256> text{};
  const int size = std::snprintf(text.data(), text.size(), format, values...);
  return {text.data(), std::min(static_cast<std::size_t>(size), text.size() - 1)};
}

std::string long_duration(double seconds) {
  if (seconds < 120) return formatted("%.3g s", seconds);
  if (seconds < 2 * 3600) return formatted("%.1f min", seconds / 60);
  if (seconds < 2 * kSecondsPerDay) return formatted("%.2f h", seconds / 3600);
  return formatted("%.1f days", seconds / kSecondsPerDay);
}

double per_day(const FailureScenario& s, const FailureKind& kind) {
  return kind.per_node_second * static_cast<double>(s.nodes) * kSecondsPerDay;
}

/// Name of the tier that an interruption restores from.
std::string survivor(const std::vector<TierPlan>& plans, FailureScope scope) {
  for (const TierPlan& plan : plans)
    if (plan.tier.survives >= scope) return plan.tier.name;
  return "";
}

Json shares_json(const GoodputShares& shares) {
  Json json;
  for (const auto& named : kNamedGoodputParts) json[named.name] = shares.*named.part;
  return json;
}

std::string interruptions_text(const GoodputReport& r, const std::vector<TierPlan>& plans) {
  std::string text = "  interruptions       a day   restore from\n";
  for (const FailureKind& kind : r.scenario.kinds)
    text += formatted("    %-15s %7.3f   %s\n", kind.name.c_str(), per_day(r.scenario, kind),
                      survivor(plans, kind.scope).c_str());
  if (r.scenario.planned_per_second > 0)
    text += formatted("    %-15s %7.3f   a save of their own\n", "planned",
                      r.scenario.planned_per_second * kSecondsPerDay);
  return text;
}

std::string checkpoints_text(const GoodputReport& r, const std::vector<TierPlan>& plans) {
  std::string text = "  checkpoints       every              stall          counts after   restored in\n";
  for (const TierPlan& plan : plans) {
    const CheckpointTier& tier = plan.tier;
    const std::string every = formatted("%lld steps, ", static_cast<long long>(tier.every_steps)) +
                              long_duration(static_cast<double>(tier.every_steps) * r.scenario.step_seconds);
    text +=
        formatted("    %-13s %-21s %-14s %-14s %s%s\n", tier.name.c_str(), every.c_str(),
                  long_duration(tier.save_seconds).c_str(), long_duration(tier.write_seconds).c_str(),
                  long_duration(tier.restore_seconds).c_str(), plan.optimum ? "   (optimum cadence)" : "");
  }
  return text;
}

}  // namespace

GoodputReport make_goodput_report(std::string job, std::string cluster, std::int64_t devices,
                                  const FailureScenario& scenario, const SimulationOptions& options) {
  return {.job = std::move(job),
          .cluster = std::move(cluster),
          .devices = devices,
          .scenario = scenario,
          .options = options,
          .closed_form = closed_form_goodput(scenario),
          .simulated = simulate_goodput(scenario, options)};
}

std::string goodput_text(const GoodputReport& r) {
  const FailureScenario& s = r.scenario;
  const std::vector<TierPlan> plans = plan_tiers(s);
  const double rate = failures_per_second(s);
  std::string text =
      r.job +
      formatted(": %lld devices on %lld nodes of ", static_cast<long long>(r.devices),
                static_cast<long long>(s.nodes)) +
      r.cluster + (rate > 0 ? ", an unexpected interruption every " + long_duration(1 / rate) : "") + "\n\n";
  text += interruptions_text(r, plans) + "\n" + checkpoints_text(r, plans) + "\n";
  text += "  one interruption    detected in " + long_duration(s.detection_seconds) + ", started again in " +
          long_duration(s.restart_seconds) + ", then restored\n";
  if (s.replace_seconds > 0)
    text += "  lost nodes          back after " + long_duration(s.replace_seconds) +
            formatted(", %lld spares; with more lost the job ", static_cast<long long>(s.spares)) +
            (s.speed_by_missing.size() > 1 ? "goes on with fewer replicas\n" : "waits\n");
  const SimulatedGoodput& m = r.simulated;
  text += formatted("\n  share of time     closed form   simulated (%lld runs of %.3g weeks)\n",
                    static_cast<long long>(r.options.runs), r.options.weeks);
  for (const auto& named : kNamedGoodputParts) {
    text += formatted("    %-13s %9.2f %%  %9.2f %%", named.name, 100 * (r.closed_form.shares.*named.part),
                      100 * (m.shares.*named.part));
    if (named.part == &GoodputShares::useful)
      text += formatted("   mean %.2f to %.2f (95%%), nine runs of ten %.2f to %.2f", 100 * m.mean_low,
                        100 * m.mean_high, 100 * m.run_low, 100 * m.run_high);
    text += "\n";
  }
  if (!r.closed_form.caveat.empty())
    text += "\n  The closed form may not hold: " + r.closed_form.caveat + ".\n";
  return text + formatted("\ngoodput %.2f %%\n", 100 * m.shares.useful);
}

std::string goodput_json(const GoodputReport& r) {
  const FailureScenario& s = r.scenario;
  const SimulatedGoodput& m = r.simulated;
  const double rate = failures_per_second(s);
  Json json;
  json["job"] = r.job;
  json["cluster"] = r.cluster;
  json["devices"] = r.devices;
  json["nodes"] = s.nodes;
  json["goodput"] = m.shares.useful;
  json["confidence_95"] = {m.mean_low, m.mean_high};
  json["runs_5_to_95"] = {m.run_low, m.run_high};
  json["simulated"] = shares_json(m.shares);
  json["closed_form"] = shares_json(r.closed_form.shares);
  json["closed_form_caveat"] = r.closed_form.caveat.empty() ? Json() : Json(r.closed_form.caveat);
  json["mtbf_seconds"] = rate > 0 ? Json(1 / rate) : Json();
  json["interruptions_per_run"] = m.interruptions_per_run;
  json["planned_per_run"] = m.planned_per_run;
  const std::vector<TierPlan> plans = plan_tiers(s);
  json["interruptions"] = Json::array();
  for (const FailureKind& kind : s.kinds)
    json["interruptions"].push_back(
        {{"kind", kind.name}, {"per_day", per_day(s, kind)}, {"restore_from", survivor(plans, kind.scope)}});
  json["checkpoints"] = Json::array();
  for (const TierPlan& plan : plans)
    json["checkpoints"].push_back({{"tier", plan.tier.name},
                                   {"every_steps", plan.tier.every_steps},
                                   {"optimum", plan.optimum},
                                   {"save_seconds", plan.tier.save_seconds},
                                   {"write_seconds", plan.tier.write_seconds},
                                   {"restore_seconds", plan.tier.restore_seconds}});
  json["inputs"] = {{"step_seconds", s.step_seconds},
                    {"detection_seconds", s.detection_seconds},
                    {"restart_seconds", s.restart_seconds},
                    {"planned_per_day", s.planned_per_second * kSecondsPerDay},
                    {"planned_seconds", s.planned_seconds},
                    {"spares", s.spares},
                    {"replace_seconds", s.replace_seconds},
                    {"elastic", s.speed_by_missing.size() > 1},
                    {"weeks", r.options.weeks},
                    {"runs", r.options.runs},
                    {"seed", r.options.seed}};
  return io::to_text(json) + "\n";
}

}  // namespace trainerd::core::plan
