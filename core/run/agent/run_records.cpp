#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/plan/predict/memory_use.h"
#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "core/spec/changes.h"
#include "core/spec/spec.h"
#include "core/version/version.h"
#include "io/lines/earlier_attempt.h"
#include "io/text/text.h"
#include "io/tracking/tracking.h"

// Part of the run (run.h): its own records in the log, the sinks and the output directory.

namespace trainerd::core::run {
namespace {

/// "text: book.txt, more/*.txt"; for a blend "token files: 0.7 of a.bin; 0.3 of b.bin, c.bin".
std::string data_text(const io::DataOptions& data) {
  if (data.format == io::DataFormat::synthetic) return "synthetic";
  std::string files;
  for (const std::string& path : data.train) files += (files.empty() ? "" : ", ") + path;
  for (const io::DataSource& source : data.sources)
    files +=
        fmt::format("{}{} of {}", files.empty() ? "" : "; ", source.weight, fmt::join(source.path, ", "));
  return (data.format == io::DataFormat::text ? "text: " : "token files: ") + files;
}

/// "LoRA of rank 4, alpha 8 on q_proj, v_proj: 61.4k parameters".
std::string adapters_text(const job::ModelOptions& model) {
  if (!model.lora.on()) return "";
  return job::to_string(model.lora) + ": " +
         io::short_number(static_cast<double>(job::count_parameters(model).adapters)) + " parameters";
}

/// Lines about the ranks' last communications that the screen shows.
constexpr std::size_t kFlightLines = 16;

}  // namespace

/// Logs the first line of a run.
void Run::announce() const {
  const job::ModelOptions& m = job_.model;
  log::info("trainerd {} ({}): {}: {}, {} parameters, {}, {} steps of {}{} tokens", core::version::release(),
            version::commit(), job_.name, m.preset.empty() ? "transformer" : m.preset,
            io::short_number(static_cast<double>(job::count_parameters(m).total)), layout_text(), job_.steps,
            job_.batch.ramp.empty() ? "" : "up to ", io::with_commas(job_.tokens_per_step()));
}

/// This host's name and the number of other nodes.
std::string Run::hosts_text() const {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return membership_.alone() ? name.data()
                             : fmt::format("{} and {} more", name.data(), membership_.nodes() - 1);
}

/// "tp1 pp1 dp2 on 2 CPU ranks".
std::string Run::layout_text() const {
  const parallel::Layout& layout = attempt_->plan().layout;
  std::string axes;
  for (const parallel::Axis axis :
       {parallel::Axis::tp, parallel::Axis::cp, parallel::Axis::ep, parallel::Axis::pp, parallel::Axis::dp}) {
    const bool usual = axis != parallel::Axis::cp && axis != parallel::Axis::ep;
    if (usual || layout.size(axis) > 1)
      axes += fmt::format("{}{} ", parallel::to_string(axis), layout.size(axis));
    if (axis == parallel::Axis::ep && layout.options.whole_experts()) axes += "etp1 ";
  }
  const bool cpu = topology_.device.kind == kernels::DeviceKind::cpu;
  const std::int64_t ranks = layout.grid.ranks();
  return fmt::format("{}on {} {} {}{}", axes, ranks, cpu ? "CPU" : "GPU", ranks == 1 ? "rank" : "ranks",
                     membership_.alone() ? "" : fmt::format(" of {} nodes", membership_.nodes()));
}

std::unique_ptr<io::ReportSink> Run::report_sink() const {
  return std::make_unique<io::ReportSink>(output_.report(), output_.steps(), output_.events(),
                                          spec::to_yaml(job_));
}

void Run::serve_metrics(const io::MetricsOptions& metrics) {
  if (!metrics.serves()) return remove_left_targets();
  auto prometheus = std::make_unique<io::PrometheusSink>(metrics);
  remove_left_targets();
  if (prometheus->moved())
    log::warn("{} of metrics.listen is taken by another process: the metrics are on the next free port",
              metrics.listen);
  log::info("metrics at http://{}/metrics", prometheus->address());
  const std::int64_t node = membership_.node();
  const MetricsTarget target{.address = prometheus->address(), .run = job_.name, .node = node};
  metrics_file_.emplace(output_.metrics(node), target);
  if (!job_.metrics.discovery.empty()) {
    const std::string id = discovery_id(job_.name, node);
    prometheus->also_at(discovery_metrics_path(id));
    discovery_file_.emplace(job_.metrics.discovery, id, discovery_record(output_.path(), node), target);
    log::info("a target for Prometheus: {}", discovery_file_->path());
  }
  auto live = std::make_unique<io::LiveSink>(prometheus->server());
  live->before_start(run_info());
  log::info("live page at http://{}/", prometheus->address());
  sinks_.add(std::move(prometheus));
  sinks_.add(std::move(live));
}

/// Every node sends its own metrics: the receiver need not be able to connect to the nodes.
void Run::send_metrics() {
  const std::int64_t node = membership_.node();
  auto otlp = std::make_unique<io::OtlpSink>(job_.metrics,
                                             io::OtlpSink::Sender{.run = job_.name,
                                                                  .node = node,
                                                                  .host = host_name(),
                                                                  .instance = discovery_id(job_.name, node),
                                                                  .version = core::version::release()});
  log::info("metrics go to {} every {}", otlp->url(), io::short_duration(job_.metrics.otlp.every_seconds));
  sinks_.add(std::move(otlp));
}

/// Removes the discovery files that earlier processes of this output directory left, for all nodes. The other
/// nodes write theirs only after the leader has begun the run.
void Run::remove_left_targets() const {
  if (!membership_.leads()) return;
  remove_left_discovery_files(output_.path());
  if (!output_.moved_to().empty()) remove_left_discovery_files(output_.moved_to());
}

void Run::open_sinks() {
  require_lead();
  // Other nodes of a job may be on this host, where node 0 uses the job's port.
  if (membership_.leads() || !options_.metrics_listen.empty()) {
    io::MetricsOptions metrics = job_.metrics;
    if (!options_.metrics_listen.empty()) metrics.listen = options_.metrics_listen;
    serve_metrics(metrics);
  }
  if (job_.metrics.otlp.sends()) send_metrics();
  if (!membership_.leads()) {
    const NodeRanks& here = attempt_->plan().here;
    log::info("node {} of {} trains ranks {} to {}; {} reports", membership_.node(), membership_.nodes(),
              here.first, here.first + here.count - 1, membership_.name_of(0));
    return;
  }
  earlier_ = io::read_earlier_attempt(output_.steps(), step_);
  earlier_run_ = io::read_earlier_run(output_.steps(), output_.events(), step_);
  require_lead();  // reading the records may have taken long
  auto steps = std::make_unique<io::JsonlSink>(output_.steps(), step_);
  auto events = std::make_unique<io::EventLogSink>(output_.events(), step_);
  auto samples = std::make_unique<io::SamplesSink>(output_.samples(), step_, earlier_run_.attempts + 1);
  for (const std::string& warning : {steps->warning(), samples->warning(), events->warning()})
    if (!warning.empty()) warn_early(warning);
  sinks_.add(std::move(steps));
  sinks_.add(std::move(samples));
  sinks_.add(std::move(events));
  sinks_.add(report_sink());
  sinks_.add(std::make_unique<io::RunFactsSink>(output_.facts()));
  sinks_.add(std::make_unique<io::ConsoleSink>(*options_.screen, *options_.log));
  open_trackers();
  for (const std::string& warning : early_warnings_) record(io::NoticeKind::warning, warning);
}

/// Writes the record of this start and opens the trackers that the job names.
void Run::open_trackers() {
  std::vector<std::string> hosts;
  for (std::int64_t node = 0; node < membership_.nodes(); ++node)
    hosts.push_back(membership_.alone() ? host_name() : membership_.name_of(node));
  StartTags start = write_start(output_.starts(), {.invocation = options_.invocation,
                                                   .version = version::release(),
                                                   .commit = version::commit(),
                                                   .step = step_,
                                                   .layout = layout_text(),
                                                   .device = topology_.device.name,
                                                   .hosts = std::move(hosts),
                                                   .data = data_});
  if (!start.problem.empty()) warn_early(start.problem);
  if (job_.metrics.tensorboard)
    sinks_.add(std::make_unique<io::TensorboardSink>(output_.tensorboard(), step_));
  const io::MlflowOptions& mlflow = job_.metrics.mlflow;
  if (!mlflow.logs()) return;
  sinks_.add(std::make_unique<io::MlflowSink>(io::MlflowRun{.server = mlflow,
                                                            .credentials = options_.invocation.credentials,
                                                            .state_path = output_.mlflow(),
                                                            .name = job_.name,
                                                            .steps_path = output_.steps(),
                                                            .events_path = output_.events(),
                                                            .params = spec::key_values(job_),
                                                            .tags = std::move(start.tags),
                                                            .allowed = membership_.write_permit()},
                                              [](const std::string& warning) { log::warn("{}", warning); }));
  log::info("the run is logged by MLflow at {}, experiment {}", mlflow.uri, mlflow.experiment);
}

/// Writes a notice to the log and to every sink.
void Run::notify(io::NoticeKind kind, const std::string& message, std::vector<std::string> details) {
  const bool calm = kind != io::NoticeKind::warning && kind != io::NoticeKind::failure &&
                    kind != io::NoticeKind::hang && kind != io::NoticeKind::straggler &&
                    kind != io::NoticeKind::device && kind != io::NoticeKind::injected &&
                    kind != io::NoticeKind::corruption && kind != io::NoticeKind::withdrawn &&
                    kind != io::NoticeKind::spike;
  log::write(calm ? log::Level::info : log::Level::warn, message);
  for (const std::string& detail : details)
    log::write(calm ? log::Level::info : log::Level::warn, "  " + detail);
  record(kind, message, std::move(details));
}

/// Writes a notice to the sinks only.
void Run::record(io::NoticeKind kind, const std::string& message, std::vector<std::string> details) {
  sinks_.each(&io::MetricsSink::on_notice,
              io::NoticeRecord{kind, step_, message, std::move(details), base::wall_seconds()});
}

/// The last communication of each rank of this node, up to kFlightLines lines. The remaining lines are only
/// written to the log file.
std::vector<std::string> Run::flight_lines() const {
  std::vector<std::string> lines = attempt_->flights();
  for (std::size_t i = kFlightLines; i < lines.size(); ++i) options_.log->add("warning", lines[i]);
  if (lines.size() <= kFlightLines) return lines;
  const std::size_t more = lines.size() - kFlightLines;
  lines.resize(kFlightLines);
  lines.push_back("and " + std::to_string(more) + " lines more in " + output_.log(membership_.node()));
  return lines;
}

void Run::log_flights() const {
  for (const std::string& line : flight_lines()) log::warn("{}", line);
}

std::string Run::begin_message() const {
  if (origin_.from.empty()) return "training starts";
  return "training starts from the weights of " + origin_.from + " (xxh3 " + origin_.content + ")";
}

/// Records the start once: with the first step, or before the reason why there is none.
void Run::record_begin() {
  if (std::exchange(begun_, true)) return;
  io::NoticeRecord notice{io::NoticeKind::start, step_, begin_message(), {}, base::wall_seconds(), earlier_};
  if (step_ > 0) {
    notice.kind = io::NoticeKind::resume;
    notice.message = "training goes on after step " + std::to_string(step_) + ", from " + start_.resume_path;
  }
  if (earlier_ && earlier_->last_step > step_) {
    notice.details.push_back(std::to_string(earlier_->last_step - step_) +
                             (step_ > 0 ? " steps after that checkpoint" : " steps") + " are done again (" +
                             io::short_duration(earlier_->lost_seconds) + ")");
    log::warn("{}", notice.details.back());
  }
  notice.start_seconds = base::monotonic_seconds() - begin_;
  sinks_.each(&io::MetricsSink::on_notice, notice);
}

void Run::watch_outlets() {
  for (const std::string& warning : sinks_.watch()) notify(io::NoticeKind::warning, warning);
}

void Run::record_done() {
  record(io::NoticeKind::finish,
         "all " + std::to_string(step_) + " steps are done; the last checkpoint is " + last_good_);
}

/// Records it in the events only: the screen shows the error when the process ends.
void Run::record_failure(const std::string& error) {
  record_begin();
  io::NoticeRecord notice{
      io::NoticeKind::failure, step_, error.substr(0, error.find('\n')), {}, base::wall_seconds()};
  for (std::size_t at = notice.message.size(); at < error.size();) {
    const std::size_t end = std::min(error.find('\n', at + 1), error.size());
    notice.details.push_back(error.substr(at + 1, end - at - 1));
    at = end;
  }
  sinks_.each(&io::MetricsSink::on_notice, notice);
}

/// Records a start that was refused before it changed anything, if the run has an event log.
void Run::record_refused(const std::string& error) {
  if (!membership_.leads() || membership_.lead_is_lost() || ::access(output_.events().c_str(), F_OK) != 0)
    return;
  try {
    require_lead();
    sinks_.add(
        std::make_unique<io::EventLogSink>(output_.events(), std::numeric_limits<std::int64_t>::max()));
    begun_ = true;
    record(io::NoticeKind::resume,
           "an attempt to go on" + (step_ > 0 ? " after step " + std::to_string(step_) : std::string()));
    record_failure(error);
  } catch (const std::exception& second) {  // the first error is the one to report
    log::error("while the failure was recorded: {}", second.what());
  }
}

io::RunInfo Run::run_info() const {
  io::RunInfo info;
  info.name = job_.name;
  info.node = membership_.node();
  info.output = output_.path();
  info.parameters = job::count_parameters(job_.model).total;
  info.steps = job_.steps;
  info.start_step = step_;
  info.start_tokens = start_.tokens;
  info.tokens_per_step = job_.tokens_per_step();
  for (const job::BatchSpan& stage : job_.batch.ramp)
    info.ramp.emplace_back(stage.steps, stage.global * job_.model.seq_len);
  info.flops_per_token = job::flops_per_token(job_.model);
  info.precision = job_.precision.name;
  std::map<std::string, std::int64_t> regions;  // sums over all ranks
  for (const auto& [plan, ranks] : attempt_->plan().ranks.known) {
    info.memory_planned_bytes += ranks * plan.memory.total_bytes();
    for (const auto& region : plan.memory.regions)
      if (region.kind != kernels::MemoryBudget::RegionKind::host)
        regions[region.name] += ranks * region.bytes;
  }
  info.memory_regions.assign(regions.begin(), regions.end());
  info.memory_uses = plan::memory_by_use(attempt_->plan().ranks.known);
  info.version = core::version::release();
  info.commit = version::commit();
  info.command = options_.command;
  info.layout = layout_text();
  if (membership_.leads()) info.earlier = earlier_run_;
  info.host = hosts_text();
  info.data = data_text(job_.data);
  info.durable = membership_.leads() && job_.checkpoint.durable.on();
  info.adapters = adapters_text(job_.model);
  return info;
}

void Run::finish(const std::string& outcome) {
  const io::RunSummary summary{step_, base::monotonic_seconds() - begin_, outcome};
  sinks_.finish(summary);
}

}  // namespace trainerd::core::run
