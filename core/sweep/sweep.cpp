#include "core/sweep/sweep.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

#include "core/spec/compose.h"
#include "core/spec/expand.h"
#include "core/spec/fields.h"
#include "core/spec/read.h"
#include "core/spec/settings.h"
#include "core/sweep/same_jobs.h"
#include "kernels/base/error.h"
#include "parallel/layout/grid.h"

namespace trainerd::core::sweep {
namespace {

constexpr double kMaxAtOnce = 1024, kMaxSteps = 1e12;

/// The contents of a file, before the jobs are built.
struct Given {
  Sweep sweep;
  std::string base;
  Halving halving;
  spec::Node grid, list;
  Draw random, sobol;
};

std::vector<spec::Field> fields_of(Given& g) {
  std::vector<spec::Field> fields;
  const auto add = [&](const char* path, spec::Storage storage) -> spec::Field& {
    return fields.emplace_back(spec::Field{path, std::move(storage), ""});
  };
  add("name", &g.sweep.name);
  add("output", &g.sweep.output);
  add("base", &g.base);
  add("grid", spec::Subtree{&g.grid});
  add("list", spec::Subtree{&g.list});
  for (auto& [name, draw] : {std::pair("random", &g.random), std::pair("sobol", &g.sobol)}) {
    const std::string section = name;
    add((section + ".samples").c_str(), &draw->samples).between(1, static_cast<double>(kMaxSweepJobs));
    add((section + ".seed").c_str(), &draw->seed);
    add((section + ".over").c_str(), spec::Subtree{&draw->over});
  }
  add("at_once", &g.sweep.at_once).between(1, kMaxAtOnce);
  add("where", spec::Choice(g.sweep.where, {spec::EnumWord<SweepPlace>{"local", SweepPlace::local},
                                            spec::EnumWord<SweepPlace>{"slurm", SweepPlace::slurm}}));
  add("sbatch", &g.sweep.sbatch);
  add("halving.metric",
      spec::Choice(g.halving.metric,
                   {spec::EnumWord<HalvingMetric>{"loss", HalvingMetric::loss},
                    spec::EnumWord<HalvingMetric>{"validation_loss", HalvingMetric::validation_loss}}));
  add("halving.eta", &g.halving.eta).between(2, 1000);
  add("halving.min_steps", &g.halving.min_steps).between(1, kMaxSteps);
  add("halving.rungs", &g.halving.rungs).between(1, 40);
  return fields;
}

class SweepReader {
 public:
  SweepReader(std::string path, const SweepArguments& arguments, const spec::Surroundings& around)
      : path_(std::move(path)), arguments_(arguments), around_(around) {
    around_.remark = remark_once(around.remark);
  }

  Sweep read() {
    source_ = problems_.add_source(path_, spec::Problems::SourceKind::file);
    try {
      read_keys(spec::parse_document(spec::read_text_file(path_), source_, "", problems_));
    } catch (const spec::Stop&) {
      problems_.throw_if_any();
    }
    const std::vector<SweepPoint> points = make_points(sources(), path_, problems_);
    check_overrides(points);
    const spec::JobText base = read_base();
    if (!problems_.none()) {  // also reports problems of the base
      const spec::Layers layers{.overrides = arguments_.overrides, .checked = spec::Checked::values};
      if (!base.text.empty()) spec::compose_job(base, layers, around_, problems_);
      problems_.throw_if_any();
    }
    make_jobs(base, points);
    if (given_.sweep.halving) check_halving();
    problems_.throw_if_any();
    return std::move(given_.sweep);
  }

 private:
  bool has(const std::string& path) const { return places_.contains(path); }
  spec::Place place(const std::string& path) const {
    const auto at = places_.find(path);
    return at == places_.end() ? spec::Place{source_, 1, 1} : at->second;
  }
  void problem(const std::string& path, const std::string& what) { problems_.add(place(path), path, what); }

  /// Reports equal remarks of several jobs only once.
  static std::function<void(const std::string&)> remark_once(std::function<void(const std::string&)> remark) {
    if (!remark) return {};
    return [remark = std::move(remark),
            told = std::make_shared<std::set<std::string>>()](const std::string& line) {
      if (told->insert(line).second) remark(line);
    };
  }

  void read_keys(spec::Node root) {
    if (root.kind != spec::Node::Kind::map) {
      problems_.add({source_, 1, 1}, "",
                    root.kind == spec::Node::Kind::nothing
                        ? "is empty: write a sweep, for example from configs/sweep.yaml"
                        : "a sweep is a map of keys, got " + describe(root));
      problems_.throw_if_any();
    }
    Sweep& sweep = given_.sweep;
    sweep.name = "sweep";
    spec::expand_texts(root, {"name", "output", "base", "sbatch"}, around_.environment, problems_);
    std::vector<spec::Field> fields = fields_of(given_);
    places_ = spec::read_fields(root, fields, problems_);
    if (!has("base")) problem("base", "is missing: the path of the job that this is a sweep of");
    else if (given_.base.empty() && !problems_.bad("base")) problem("base", "is empty");
    if (!has("grid") && !has("list") && !has("random") && !has("sobol"))
      problem("", "makes no jobs: give grid, list, random or sobol");
    for (const char* section : {"random", "sobol"})
      for (const char* key : {"samples", "over"})
        if (const std::string path = std::string(section) + "." + key;
            has(section) && !has(path) && !problems_.bad(section))
          problem(section, path + " is missing");
    if (has("halving")) {
      if (!has("halving.min_steps") && !problems_.bad("halving"))
        problem("halving", "halving.min_steps is missing: the steps of the first rung");
      sweep.halving = given_.halving;
    }
    if (has("sbatch") && sweep.where != SweepPlace::slurm) problem("sbatch", "is for where: slurm");
    if (!arguments_.output.empty()) sweep.output = arguments_.output;
    if (sweep.output.empty()) sweep.output = "sweeps/" + sweep.name;
  }

  PointSources sources() const {
    PointSources sources;
    const auto draw_of = [&](const char* section, const Draw& given) -> std::optional<Draw> {
      const std::string name = section;
      if (!has(name + ".over")) return std::nullopt;
      Draw draw = given;
      if (problems_.bad(name + ".samples")) draw.samples = 0;  // its ranges are still checked
      return draw;
    };
    if (has("grid")) sources.grid = given_.grid;
    if (has("list")) sources.list = given_.list;
    sources.random = draw_of("random", given_.random);
    sources.sobol = draw_of("sobol", given_.sobol);
    return sources;
  }

  /// Refuses overrides of keys that every job sets.
  void check_overrides(const std::vector<SweepPoint>& points) {
    std::set<std::string> given{"name", "output"};
    for (const SweepPoint& point : points)
      for (const SetKey& key : point.set) given.insert(key.path);
    for (const std::string& argument : arguments_.overrides) {
      const std::string path = argument.substr(0, argument.find('='));
      for (const std::string& key : given)
        if (key == path || key.starts_with(path + ".") || path.starts_with(key + "."))
          problems_.add(
              {problems_.add_source("--set " + spec::printable(argument, 160),
                                    spec::Problems::SourceKind::argument),
               1, 1},
              path,
              "the sweep gives its jobs " + key + (key == "output" ? ": use --output" : ": change it there"));
    }
  }

  spec::JobText read_base() {
    spec::JobText base;
    if (given_.base.empty() || problems_.bad("base")) return base;
    namespace fs = std::filesystem;
    const fs::path directory = fs::path(path_).parent_path();
    base.name = (directory.empty() ? fs::path(given_.base) : directory / given_.base).lexically_normal();
    around_.directory = fs::path(base.name).parent_path();
    if (around_.directory.empty()) around_.directory = ".";
    std::string wrong;
    auto text = spec::read_plain_file(base.name, wrong);
    if (text) base.text = *std::move(text);
    else problem("base", wrong);
    return base;
  }

  static spec::Setting text_setting(const std::string& path, const std::string& text,
                                    const spec::Place& place) {
    spec::Setting setting{path, {}, place};
    setting.value.kind = spec::Node::Kind::scalar;
    setting.value.quoted = true;
    setting.value.place = place;
    setting.value.text = spec::unexpanded(text);
    return setting;
  }

  /// This machine's resources per job, for jobs that run at once.
  spec::Surroundings shared() const {
    spec::Surroundings around = around_;
    if (given_.sweep.where == SweepPlace::slurm) around.machine = arguments_.slurm_machine;
    else if (around_.machine)
      around.machine = [machine = around_.machine, n = given_.sweep.at_once] {
        spec::Machine share = machine();
        share.cores = std::max<std::int64_t>(1, share.cores / n);
        share.cuda_devices = share.cuda_devices >= n ? share.cuda_devices / n : share.cuda_devices;
        return share;
      };
    return around;
  }

  void make_jobs(const spec::JobText& base, const std::vector<SweepPoint>& points) {
    Sweep& sweep = given_.sweep;
    const spec::Surroundings around = shared();
    const int digits = 3;
    std::string first_problems;
    std::size_t refused = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      SweepJob job;
      std::string number = std::to_string(i + 1);
      number.insert(0, static_cast<std::size_t>(std::max(0, digits - static_cast<int>(number.size()))), '0');
      job.name = sweep.name + "-" + number;
      job.set = points[i].set;
      spec::Layers layers{.overrides = arguments_.overrides, .over = points[i].settings};
      layers.over.push_back(text_setting("name", job.name, place("name")));
      layers.over.push_back(text_setting("output", sweep.output + "/jobs/" + job.name, place("output")));
      // Jobs on one node must not use the same port.
      layers.below.push_back(text_setting("metrics.listen", "127.0.0.1:0", {source_, 1, 1}));
      spec::Problems found;
      found.add_source(path_, spec::Problems::SourceKind::file);
      job.spec = spec::compose_job(base, layers, around, found);
      // Each run needs its own durable tier, or a job without an output would continue from another job's
      // checkpoints.
      if (std::string& to = job.spec.checkpoint.durable.to; !to.empty())
        to += (to.ends_with('/') ? "" : "/") + job.name;
      try {
        found.throw_if_any();
        if (sweep.where == SweepPlace::local && around.machine) divide_cores(job, around);
      } catch (const base::SpecError& error) {
        job.refused = error.what();
        if (refused++ == 0) first_problems = error.what();
      }
      sweep.jobs.push_back(std::move(job));
    }
    if (refused == sweep.jobs.size()) throw base::spec_error(first_problems);
    if (around.remark)
      for (const std::string& line : same_job_remarks(sweep)) around.remark(line);
  }

  static void divide_cores(SweepJob& job, const spec::Surroundings& around) {
    job::JobSpec& spec = job.spec;
    if (spec.threads != 0 || spec.device == job::DeviceChoice::cuda || spec.cluster.preset != "local") return;
    job.automatic_threads = true;
    spec.threads =
        std::max<std::int64_t>(1, around.machine().cores / parallel::make_grids(spec.parallel).dense.ranks());
  }

  /// Checks that jobs can be compared at the same steps, with their metric measured there.
  void check_halving() {
    const Sweep& sweep = given_.sweep;
    const Halving& halving = *sweep.halving;
    const auto runs = [](const SweepJob& job) { return job.refused.empty(); };
    const auto first = std::find_if(sweep.jobs.begin(), sweep.jobs.end(), runs);
    const std::vector<std::int64_t> rungs = rung_steps(halving, first->spec.steps);
    if (rungs.empty())
      return problem("halving.min_steps", "must be less than the " + std::to_string(first->spec.steps) +
                                              " steps of a job, got " + std::to_string(halving.min_steps));
    for (const SweepJob& job : sweep.jobs) {
      if (!runs(job)) continue;
      if (job.spec.steps != first->spec.steps)
        return problem("halving", "compares jobs of as many steps: " + first->name + " has " +
                                      std::to_string(first->spec.steps) + " and " + job.name + " " +
                                      std::to_string(job.spec.steps));
      if (halving.metric != HalvingMetric::validation_loss) continue;
      for (const std::int64_t step : rungs)
        if (job.spec.evaluate.every == 0 || step % job.spec.evaluate.every != 0)
          return problem("halving.metric", "validation_loss is not known at the rung of step " +
                                               std::to_string(step) + " of " + job.name +
                                               ", whose evaluate.every is " +
                                               std::to_string(job.spec.evaluate.every));
    }
  }

  std::string path_;
  const SweepArguments& arguments_;
  spec::Surroundings around_;
  spec::Problems problems_;
  int source_ = 0;
  Given given_;
  spec::Places places_;
};

}  // namespace

Sweep read_sweep(const std::string& path, const SweepArguments& arguments, const spec::Surroundings& around) {
  return SweepReader(path, arguments, around).read();
}

}  // namespace trainerd::core::sweep
