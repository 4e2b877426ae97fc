#include "core/sweep/run_sweep.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <span>

#include "core/sweep/page.h"
#include "core/sweep/table.h"
#include "kernels/base/fd.h"

namespace trainerd::core::sweep {
namespace {

/// The last non-empty line of a log.
std::string last_line(const std::string& path) {
  const base::UniqueFd file = base::open_read(path);
  const std::int64_t bytes = file ? base::file_bytes(file.get()) : 0;
  std::string text(static_cast<std::size_t>(std::clamp<std::int64_t>(bytes, 0, 4096)), '\0');
  const std::int64_t n = base::read_at(file.get(), std::as_writable_bytes(std::span(text)),
                                       std::max<std::int64_t>(0, bytes - 4096));
  text.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, n)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.find_last_of('\n') + 1);
}

class SweepRun {
 public:
  SweepRun(const Sweep& sweep, JobRunner& runner, const SayLine& say)
      : sweep_(sweep), runner_(runner), say_(say), statuses_(sweep.jobs.size()) {
    end_.results.resize(sweep.jobs.size());
  }

  SweepEnd run() {
    for (std::size_t i = 0; i < sweep_.jobs.size(); ++i)
      if (!sweep_.jobs[i].refused.empty()) {
        end_.results[i] = {.status = JobStatus::refused, .reason = sweep_.jobs[i].refused};
        say_(sweep_.jobs[i].name + " refused: " + first_line(sweep_.jobs[i].refused));
      } else {
        alive_.push_back(i);
      }
    runner_.await_earlier(alive_);
    write();
    std::vector<std::int64_t> rungs;
    if (sweep_.halving && !alive_.empty())
      rungs = rung_steps(*sweep_.halving, sweep_.jobs[alive_.front()].spec.steps);
    for (const std::int64_t step : rungs) {
      if (alive_.size() <= 1) break;  // nothing to compare
      if (!to_rung(step)) return finish();
    }
    to_end();
    return finish();
  }

 private:
  const std::string& directory(std::size_t job) const { return sweep_.jobs[job].spec.output; }

  /// Returns false if the sweep was stopped.
  bool to_rung(std::int64_t step) {
    const HalvingMetric metric = sweep_.halving->metric;
    std::vector<std::size_t> jobs;
    for (const std::size_t job : alive_)
      if (!metric_at(directory(job), metric, step)) jobs.push_back(job);
    run_phase(jobs, step,
              [&](std::size_t job) { return metric_at(directory(job), metric, step).has_value(); });
    if (runner_.stop()) return false;
    std::vector<std::optional<double>> values;
    for (const std::size_t job : alive_)
      values.push_back(failed(job) ? std::nullopt : metric_at(directory(job), metric, step));
    const std::vector<std::size_t> best = promoted(values, sweep_.halving->eta);
    std::vector<std::size_t> on;
    for (std::size_t i = 0; i < alive_.size(); ++i) {
      if (std::find(best.begin(), best.end(), i) != best.end()) on.push_back(alive_[i]);
      else if (!failed(alive_[i]))
        end_.results[alive_[i]] = {.status = JobStatus::stopped_early,
                                   .record = read_record(directory(alive_[i]), step)};
    }
    say_("rung of step " + std::to_string(step) + ": " + std::to_string(on.size()) + " of " +
         std::to_string(alive_.size()) + " jobs go on");
    alive_ = std::move(on);
    write();
    return true;
  }

  void to_end() {
    std::vector<std::size_t> jobs;
    const auto done = [this](std::size_t job) {
      return run_is_done(directory(job), sweep_.jobs[job].spec.steps);
    };
    for (const std::size_t job : alive_)
      if (done(job))
        end_.results[job] = {.status = JobStatus::done, .record = read_record(directory(job), kAllSteps)};
      else jobs.push_back(job);
    write();
    run_phase(jobs, std::nullopt, done);
  }

  bool failed(std::size_t job) const { return end_.results[job].status == JobStatus::failed; }

  template <class Reached>
  void run_phase(const std::vector<std::size_t>& jobs, std::optional<std::int64_t> stop_after,
                 const Reached& reached) {
    if (jobs.empty() || runner_.stop()) return;
    runner_.run(jobs, stop_after, [&](std::size_t job, std::optional<int> status) {
      JobResult& result = end_.results[job];
      // A run that finds all its steps done writes no record of that.
      if (reached(job) || (!stop_after && status == 0)) {
        if (!stop_after)
          result = {.status = JobStatus::done, .record = read_record(directory(job), kAllSteps)};
        say_(sweep_.jobs[job].name + (stop_after ? " reached step " + std::to_string(*stop_after) : " done") +
             loss_of(job, stop_after.value_or(kAllSteps)));
      } else if (runner_.stop()) {
        say_(sweep_.jobs[job].name + " stopped");
      } else {
        result = {.status = JobStatus::failed,
                  .reason = why_failed(job, status),
                  .record = read_record(directory(job), kAllSteps)};
        statuses_[job] = status;
        say_(sweep_.jobs[job].name + " failed: " + result.reason);
      }
      write();
    });
  }

  std::string loss_of(std::size_t job, std::int64_t step) const {
    const JobRecord record = read_record(directory(job), step);
    return ", loss " + loss_text(record.loss) +
           (record.validation_loss ? ", validation loss " + loss_text(record.validation_loss) : "");
  }

  std::string why_failed(std::size_t job, std::optional<int> status) const {
    if (status && *status > 128 && *status != 143 && *status != 130)
      return "ended by " + run::signal_name(*status - 128);
    if (status && *status > 128) return "was stopped by a signal to it; run the sweep again to go on with it";
    std::string why;
    if (std::filesystem::exists(directory(job))) why = failure_of(directory(job));
    if (why.empty()) why = last_line(sweep_.job_log(sweep_.jobs[job]));
    if (why.empty())
      why = status ? "exit status " + std::to_string(*status) : "it ended before its last step";
    return why;
  }

  void write() const {
    write_whole(sweep_.results(), results_lines(sweep_, end_.results));
    write_whole(sweep_.page(), sweep_page(sweep_, end_.results));
  }

  SweepEnd finish() {
    end_.stop = runner_.stop();
    for (std::size_t i = 0; i < statuses_.size() && end_.failed_status == 0; ++i)
      if (failed(i)) end_.failed_status = statuses_[i].value_or(0) > 0 ? *statuses_[i] : 1;
    write();
    return std::move(end_);
  }

  const Sweep& sweep_;
  JobRunner& runner_;
  const SayLine& say_;
  std::vector<std::size_t> alive_;            ///< neither refused nor stopped early
  std::vector<std::optional<int>> statuses_;  ///< exit statuses of failed jobs
  SweepEnd end_;
};

}  // namespace

SweepEnd run_sweep(const Sweep& sweep, JobRunner& runner, const SayLine& say) {
  return SweepRun(sweep, runner, say).run();
}

}  // namespace trainerd::core::sweep
