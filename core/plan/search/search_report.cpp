// Formats a search's result as text, as JSON and as the chosen job.

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/plan/cost/cost_model.h"
#include "core/plan/cost/units.h"
#include "core/plan/search/search.h"
#include "core/spec/spec.h"
#include "io/text/json.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::plan {
namespace {

using Json = nlohmann::ordered_json;

std::string recompute_text(const job::RecomputeOptions& r) {
  if (r.kind == job::RecomputeKind::none) return "none";
  if (r.kind == job::RecomputeKind::selective) return "selective";
  return r.every == 1 ? "full" : "full/" + std::to_string(r.every);
}

struct Column {
  const char* name;
  std::function<std::string(const LayoutChoice&)> value;
  const char* usual = "";  ///< not mentioned if all layouts have it
};

std::vector<Column> columns() {
  const auto number = [](std::int64_t LayoutChoice::*field) {
    return [field](const LayoutChoice& c) { return std::to_string(c.*field); };
  };
  return {
      {"tp", number(&LayoutChoice::tp)},
      {"cp", number(&LayoutChoice::cp), "1"},
      {"pp", number(&LayoutChoice::pp)},
      {"dp", number(&LayoutChoice::dp)},
      {"ep", number(&LayoutChoice::ep), "1"},
      {"etp", [](const LayoutChoice& c) { return c.etp == 0 ? "as tp" : std::to_string(c.etp); }, "as tp"},
      {"zero",
       [](const LayoutChoice& c) {
         return std::to_string(c.zero) + (c.zero_group > 0 ? "/" + std::to_string(c.zero_group) : "");
       }},
      {"sp", [](const LayoutChoice& c) { return c.sequence_parallel ? "yes" : "no"; }},
      {"micro", number(&LayoutChoice::micro)},
      {"schedule",
       [](const LayoutChoice& c) {
         return std::string(parallel::to_string(c.schedule)) +
                (c.virtual_stages > 1 ? " x" + std::to_string(c.virtual_stages) : "");
       }},
      {"recompute", [](const LayoutChoice& c) { return recompute_text(c.recompute); }},
      {"bucket", [](const LayoutChoice& c) {
         const std::int64_t bytes =
             c.bucket_bytes == 0 ? parallel::default_bucket_bytes(c.most_gradient_ranks()) : c.bucket_bytes;
         return fmt::format("{:.4g} MiB", gib(bytes) * 1024);
       }}};
}

/// A table of layouts: common values on a line above, differing ones in columns.
std::string table(const std::vector<RankedLayout>& layouts, bool times) {
  std::string common;
  std::vector<std::vector<std::string>> rows(layouts.size() + 1);
  for (const Column& column : columns()) {
    std::vector<std::string> values;
    for (const RankedLayout& l : layouts) values.push_back(column.value(l.choice));
    if (std::all_of(values.begin(), values.end(),
                    [&](const std::string& v) { return v == values.front(); })) {
      if (values.front() == column.usual) continue;
      common += (common.empty() ? "" : ", ") + std::string(column.name) + " " + values.front();
      continue;
    }
    rows[0].emplace_back(column.name);
    for (std::size_t i = 0; i < values.size(); ++i) rows[i + 1].push_back(values[i]);
  }
  for (const char* name : {"step", "tokens/s", "MFU", "bubble"})
    if (times) rows[0].emplace_back(name);
  rows[0].emplace_back("GiB");
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const RankedLayout& l = layouts[i];
    if (times)
      for (std::string& text :
           std::array{duration(l.step_seconds), fmt::format("{:.0f}", l.tokens_per_second_per_device),
                      fmt::format("{:.1f}%", 100 * l.mfu), fmt::format("{:.1f}%", 100 * l.bubble)})
        rows[i + 1].push_back(std::move(text));
    rows[i + 1].push_back(fmt::format("{:.1f}", gib(l.peak_bytes)));
  }
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text = common.empty() ? "" : "  all: " + common + "\n";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    text += r == 0 ? "   " : fmt::format("{:>3}", r);
    for (std::size_t i = 0; i < widths.size(); ++i) text += fmt::format("  {:>{}}", rows[r][i], widths[i]);
    text += "\n";
  }
  return text;
}

std::string heading(const job::JobSpec& job, const parallel::Topology& t, const SearchResult& r) {
  const double devices = static_cast<double>(job.parallel.ranks());
  return fmt::format(
      "{} on {:.0f} x {} ({}), {} sequences per step: {} layouts, {} too large at once, {} planned, in {}\n",
      job.name, devices, t.device.name, t.name, job.batch.global, r.layouts, r.too_large, r.planned,
      duration(r.seconds));
}

Json layout_json(const RankedLayout& l, bool timed) {
  const LayoutChoice& c = l.choice;
  Json json{{"tp", c.tp},
            {"pp", c.pp},
            {"cp", c.cp},
            {"dp", c.dp},
            {"ep", c.ep},
            {"etp", c.etp},
            {"zero", c.zero},
            {"zero_group", c.zero_group},
            {"sequence_parallel", c.sequence_parallel},
            {"micro", c.micro},
            {"schedule", parallel::to_string(c.schedule)},
            {"virtual_stages", c.virtual_stages},
            {"recompute", recompute_text({c.recompute.kind, 1})},
            {"recompute_every", c.recompute.every},
            {"bucket_bytes",
             c.bucket_bytes == 0 ? parallel::default_bucket_bytes(c.most_gradient_ranks()) : c.bucket_bytes},
            {"fits", l.fits},
            {"peak_bytes", l.peak_bytes}};
  if (!l.fits || !timed) return json;
  json["step_seconds"] = l.step_seconds;
  json["tokens_per_second_per_device"] = l.tokens_per_second_per_device;
  json["mfu"] = l.mfu;
  json["bubble"] = l.bubble;
  return json;
}

}  // namespace

std::string chosen_yaml(const job::JobSpec& job, const SearchResult& result) {
  const RankedLayout& best = result.best.front();
  std::string changes;
  for (const std::string& key : differences(choice_of(job), best.choice)) changes += "#   " + key + "\n";
  const std::string what =
      result.timed
          ? fmt::format(
                "# The fastest of {} layouts for {}, as planned: {} per step, MFU {:.1f}%, {:.1f} of {:.1f} "
                "GiB.\n",
                result.layouts, job.cluster.preset, duration(best.step_seconds), 100 * best.mfu,
                gib(best.peak_bytes), gib(result.device_bytes))
          : fmt::format("# One of {} layouts for {} that fits, by memory alone: {:.1f} of {:.1f} GiB.\n",
                        result.layouts, job.cluster.preset, gib(best.peak_bytes), gib(result.device_bytes));
  return what + (changes.empty() ? "# It is the job's own.\n" : "# Changed:\n" + changes) +
         spec::to_yaml(with_choice(job, best.choice));
}

std::string search_text(const job::JobSpec& job, const parallel::Topology& topology,
                        const SearchResult& result) {
  std::string text = heading(job, topology, result);
  if (!result.refused.empty()) return text + "none can be planned: " + result.refused + "\n";
  if (result.best.empty())
    return text +
           fmt::format("none fits the {:.1f} GiB of a device: use more devices; nearest come\n",
                       gib(result.device_bytes)) +
           table(result.nearest, false);
  const auto own = std::find_if(result.best.begin(), result.best.end(),
                                [&](const RankedLayout& l) { return l.choice == choice_of(job); });
  if (!result.timed)
    text += "times are not compared: " + topology.name +
            " has no operator rates: " + how_to_get_rates(topology, job) + "\n";
  text += fmt::format("{} {:.1f} GiB\n", result.timed ? "fastest that fit" : "that fill most of",
                      gib(result.device_bytes)) +
          table(result.best, result.timed);
  if (own != result.best.end())
    text += fmt::format("the job's own is number {}\n", own - result.best.begin() + 1);
  const std::vector<std::string> changed = differences(choice_of(job), result.best.front().choice);
  text += changed.empty() ? "chosen: the job's own\n" : "chosen, over the job's own:\n";
  for (const std::string& key : changed) text += "  " + key + "\n";
  return text;
}

std::string search_json(const job::JobSpec& job, const parallel::Topology& topology,
                        const SearchResult& result) {
  Json out{{"name", job.name},
           {"cluster", topology.name},
           {"device", topology.device.name},
           {"devices", job.parallel.ranks()},
           {"fits", !result.best.empty()},
           {"device_bytes", result.device_bytes},
           {"layouts", result.layouts},
           {"too_large", result.too_large},
           {"planned", result.planned},
           {"search_seconds", result.seconds},
           {"timed", result.timed}};
  for (const auto& [key, layouts] : {std::pair{"best", &result.best}, {"nearest", &result.nearest}}) {
    Json& list = out[key] = Json::array();
    for (const RankedLayout& l : *layouts) list.push_back(layout_json(l, result.timed));
  }
  if (!result.best.empty()) out["job"] = spec::to_yaml(with_choice(job, result.best.front().choice));
  return io::to_text(out, 2) + "\n";
}

}  // namespace trainerd::core::plan
