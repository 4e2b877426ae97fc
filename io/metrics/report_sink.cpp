#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "io/metrics/report/page.h"
#include "io/metrics/sinks.h"
#include "io/metrics/step_log.h"
#include "io/text.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

base::DataError failed(const std::string& path, const char* what, int error,
                       std::source_location where = std::source_location::current()) {
  return base::data_error(path + ": cannot " + what + ": " + base::errno_text(error) +
                              "; free some space or set output: to another directory",
                          where);
}

// Under its own name only when whole: a reader never opens half a page.
void write_page(const std::string& path, const std::string& page) {
  const std::string aside = path + ".partial";
  base::UniqueFd fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) throw failed(aside, "make this file", errno);
  if (const int error = base::write_all(fd.get(), std::as_bytes(std::span(page))); error != 0) {
    ::unlink(aside.c_str());
    throw failed(aside, "write", error);
  }
  if (::rename(aside.c_str(), path.c_str()) != 0) throw failed(path, "put the report there", errno);
}

}  // namespace

struct ReportSink::State {
  std::string path, steps_path;
  Report report;
  std::vector<double> speeds, mfus;
};

ReportSink::ReportSink(std::string path, std::string steps_path, std::string job_yaml)
    : state_(std::make_unique<State>()) {
  state_->path = std::move(path);
  state_->steps_path = std::move(steps_path);
  state_->report.job_yaml = std::move(job_yaml);
}

ReportSink::~ReportSink() = default;

void ReportSink::on_start(const RunInfo& info) {
  Report& report = state_->report;
  report.info = info;
  if (info.start_step == 0) return;
  read_step_log(state_->steps_path, info.start_step, [&report](const StepRecord& record) {
    report.series.add(record);
    report.final_loss = record.loss;
  });
}

void ReportSink::on_step(const StepRecord& record) {
  State& s = *state_;
  s.report.series.add(record);
  s.report.final_loss = record.loss;
  s.speeds.push_back(record.tokens_per_second);
  if (record.mfu) s.mfus.push_back(*record.mfu);
}

void ReportSink::on_evaluation(const EvaluationRecord& record) {
  state_->report.evaluations.push_back(record);
}
void ReportSink::on_checkpoint(const CheckpointRecord& record) {
  state_->report.checkpoints.push_back(record);
}

void ReportSink::on_finish(const RunSummary& summary) {
  State& s = *state_;
  s.report.summary = summary;
  s.report.median_tokens_per_second = median(s.speeds);
  s.report.median_mfu = median(s.mfus);
  write_page(s.path, render(s.report));
}

}  // namespace trainerd::io
