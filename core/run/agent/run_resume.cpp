#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "core/hf/companions.h"
#include "core/hf/weight_source.h"
#include "core/run/agent/failure_file.h"
#include "core/run/agent/passed_over.h"
#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "core/run/worker/batches.h"
#include "core/run/worker/evaluation.h"
#include "core/run/worker/run_tokenizer.h"
#include "core/train/snapshot.h"
#include "io/checkpoint/tiers.h"
#include "io/lines/earlier_attempt.h"
#include "io/metrics/event_log.h"
#include "io/text/text.h"
#include "kernels/base/error.h"

// Part of the run (run.h): what an earlier run left, and where this one begins.

namespace trainerd::core::run {

void Run::prepare() {
  options_.log->open(output_.log(membership_.node()));
  try {
    resume();
    // The leader gathers at once. It must not wait until this agent has read its data.
    if (!membership_.leads()) begin_exchange(), meet_exchange(attempt_->number());
    if (membership_.leads() && series_.failures.none())
      if (const std::string problem = restore_failures(series_.failures, output_.failures(), step_);
          !problem.empty())
        warn_early(problem);
    if (!already_trained()) check_data();
    // For LoRA and DPO the base or reference weights are needed on a resume too.
    const bool kept = (job_.model.lora.on() || job_.loss.dpo.on()) && !already_trained();
    if (job_.loss.dpo.on()) start_.reference_path = output_.reference();
    if ((start_.resume_path.empty() || kept) && !job_.model.from.empty()) check_weights();
    if (membership_.leads() && !already_trained()) settle_tokenizer();
  } catch (const LeaderLost&) {
    throw;
  } catch (const std::exception& error) {
    record_refused(error.what());
    throw;
  }
}

/// True if only the report is left to do.
bool Run::already_trained() const { return step_ >= job_.steps && !start_.evaluate_first; }

void Run::resume() {
  if (!membership_.leads()) {
    const Go& go = membership_.go();
    last_good_ = go.last_good;
    start_.resume_path = go.resume_path;
    start_.step = step_ = first_step_ = go.step;
    start_.cursor = go.cursor;
    start_.tokens = tokens_ = go.tokens;
    start_.order = go.order;
    start_.evaluate_first = go.evaluate_first;
    folders_ = go.folders;
    start_.faults_done = go.faults_done;
    start_.spikes = go.spikes;
    keep_history(series_, go.spikes, go.step);
    keep_only(go.cut, !go.sources.empty());
    series_.from_disk = false;
    learn_from(go.head);
    // Another leads: what it passes over is in the file.
    series_.passed_over.reset(), series_.returns_to.reset();
    return;
  }
  if (!output_.moved_to().empty())
    log::info("the output of an earlier run was moved to {}", output_.moved_to());
  require_lead();
  if (const std::string problem = store_.collect_partial(); !problem.empty())
    warn_early("what an earlier run left unfinished is still there: " + problem);
  folders_ = store_.next_attempts();
  for (const auto& [step, next] : series_.folders) folders_[step] = std::max(folders_[step], next);
  start_.spikes = spike_history(0);
  for (const auto& [step, next] : membership_.known_folders())
    folders_[step] = std::max(folders_[step], next);
  if (!membership_.lead_moved().empty() && !series_.lead_recorded)
    changes_.push_back({io::NoticeKind::node, 0, membership_.lead_moved(), {}, base::wall_seconds()});
  series_.lead_recorded = true;
  // What other agents hold matters to a run that goes on with another size or leader.
  const bool may_survive = !series_.returns_to && (!series_.first || !membership_.lead_moved().empty());
  std::optional<io::CheckpointStore::Found> found;
  if (may_survive && !std::exchange(series_.from_disk, false)) found = find_in_memory();
  const bool in_memory = found.has_value();
  keep_only(surviving_.begun_with.cut, in_memory);
  if (!in_memory) found = find_newest();
  const auto returns_to = std::exchange(series_.returns_to, std::nullopt);
  if (found && returns_to && found->where.step > *returns_to)
    throw base::checkpoint_error(fmt::format(
        "the run goes back to step {}, and checkpoint {} of a later step still counts: it could not "
        "be withdrawn; remove it",
        *returns_to, found->where.path));
  for (const io::StoredCheckpoint& incomplete : store_.incomplete())
    // Later checkpoints were withdrawn by the rollback, which was reported.
    if (incomplete.step <= returns_to.value_or(incomplete.step) &&
        (!found || incomplete.step > found->where.step))
      warn_early("checkpoint " + incomplete.path +
                 " will not be used: it has no file COMPLETE, so it was never finished");
  first_cursor_ = cursor_after(series_, found ? found->where.step : 0, output_.passed_over());
  if (!found && first_cursor_) start_.cursor = *first_cursor_;
  if (!found) return refuse_records();
  const io::TrainingState& state = found->manifest.state;
  train::require_same_identity(found->where.path, state.identity, job_);
  start_.resume_path = found->where.path;
  start_.step = step_ = first_step_ = state.step;
  if (!in_memory) last_good_ = found->where.path, surviving_.disk_step = state.step;
  start_.cursor = first_cursor_.value_or(state.cursor);
  start_.tokens = tokens_ = state.tokens;
  start_.spikes = spike_history(step_);
  origin_ = hf::parse_origin(state.origin, found->where.path);
  if (const auto reference = state.identity.find(kReferenceEntry); reference != state.identity.end())
    start_.reference = reference->second;
  require_reference(found->where.path);
  log::info("resuming from {} (step {})", found->where.path, state.step);
  if (auto changes = job_changes(state, output_.written_job(), job_)) changes_.push_back(*std::move(changes));
  resumed_ = std::move(found->manifest.state);
  start_.evaluate_first = evaluation_missing();
  evaluated_step_ = start_.evaluate_first ? step_ - 1 : step_;
}

/// What a follower would not know of the run if it came to lead it.
void Run::learn_from(const std::string& head) {
  if (head.empty()) return;
  const io::TrainingState state = io::parse_manifest(head).state;
  origin_ = hf::parse_origin(state.origin, "the leader's message");
  if (const auto reference = state.identity.find(kReferenceEntry); reference != state.identity.end())
    start_.reference = reference->second;
  for (const io::SourceState& source : state.sources)
    if (source.weight == 0) gone_sources_.push_back(source);
}

/// The reference of loss.dpo is the weights that the run began from: it must have had one, and they must be
/// there, in case that log-probabilities are missing.
void Run::require_reference(const std::string& path) const {
  if (!job_.loss.dpo.on()) return;
  if (start_.reference.empty())
    throw base::checkpoint_error(
        "loss.dpo: " + path +
        " was trained without it, and its reference would be the weights from before that: "
        "give the job another `output`, and set model.from to this run");
  if (!origin_.from.empty() && job_.model.from.empty())
    throw base::checkpoint_error("loss.dpo: " + path + " began from the weights of " + origin_.from +
                                 " (xxh3 " + origin_.content +
                                 "), which are its reference: set model.from to where they are");
}

/// The newest intact checkpoint of the run's directory and its durable tier.
std::optional<io::CheckpointStore::Found> Run::find_newest() {
  const auto warn = [this](const std::string& message) {
    if (sinks_started_) notify(io::NoticeKind::warning, message);
    else warn_early(message);
  };
  const auto rejected = [&](const std::string& path, const std::string& why) {
    warn("checkpoint " + path + " is damaged and will not be used: " + why);
  };
  if (!job_.checkpoint.durable.on()) return store_.newest_valid(rejected);
  const io::CheckpointStore durable = durable_store(options_);
  auto choice = io::newest_of_tiers(store_, durable, rejected);
  require_own_tier(durable, !choice || choice->warning.empty());
  if (!choice) return std::nullopt;
  if (!choice->warning.empty()) warn(choice->warning);
  const std::string message = "the newest of the run's directory and its durable tier is " +
                              choice->found.where.path + (choice->why.empty() ? "" : "; " + choice->why);
  if (sinks_started_) {
    notify(io::NoticeKind::durable, message);
  } else {
    log::info("{}", message);
    early_choice_ = message;
  }
  if (!choice->durable && !choice->in_both && choice->warning.empty())
    left_to_copy_ = {.step = choice->found.where.step,
                     .folder = choice->found.where.name(),
                     .target = choice->found.where.name(),
                     .ranks = static_cast<std::int64_t>(choice->found.manifest.shards.size()),
                     .by_leader = true};
  durable_folders_ = std::move(choice->next_attempts);
  return std::move(choice->found);
}

/// True if the run ended after the checkpoint and before it recorded the evaluation after that step.
bool Run::evaluation_missing() const {
  if (step_ > job_.steps || !evaluation_due(job_, step_)) return false;
  bool missing = true;
  io::read_event_log(output_.events(), step_, [&](const io::EventRecord& event) {
    const auto* evaluation = std::get_if<io::EvaluationRecord>(&event);
    if (evaluation != nullptr && evaluation->step == step_) missing = false;
  });
  return missing;
}

/// Called before anything of an earlier run is changed: refused data must leave it as it was.
void Run::check_data() {
  const double begin = base::monotonic_seconds();
  files_ = data_files(job_, options_.find_s3);
  data_ = look_at_data(job_, files_);
  log::info("data: {}; samples were checked in {}", data_text(data_.files(), data_.content()),
            io::short_duration(base::monotonic_seconds() - begin));
  start_.data_content = data_.content();
  // The validation pairs need the reference's log-probabilities too.
  if (job_.loss.dpo.on() && !data_.valid.empty()) start_.data_content += "; valid " + data_.valid;
  if (resumed_) {
    ResumedData resumed = resumed_data(start_.resume_path, *resumed_, data_, job_.data.on_change);
    start_.order = std::move(resumed.course.order);
    gone_sources_ = std::move(resumed.course.gone);
    std::move(resumed.notices.begin(), resumed.notices.end(), std::back_inserter(changes_));
  }
  if (data_.sources.size() > 1) blend_ = io::blend_after(start_.order, data_.sources);
  require_enough(data_, start_.order,
                 start_.cursor - start_.order.start + job_.batch.sequences(step_, job_.steps));
}

/// Called before anything of an earlier run is changed. The leader reads the weights completely. For the
/// other nodes only names and sizes are compared, together with the data.
void Run::check_weights() {
  const double begin = base::monotonic_seconds();
  const auto weights = hf::open_weights(job_.model.from);
  start_.weights_path = weights->path();
  start_.data_content += (start_.data_content.empty() ? "weights " : ", weights ") + weights->outline();
  if (!membership_.leads()) return;
  const std::string content = weights->verify();
  start_.weights_content = content;
  if (!start_.resume_path.empty()) return require_same_base(weights->path(), content);
  origin_ = weights->origin();
  origin_.from = weights->path();
  origin_.content = content;
  if (!weights->tokenizer().empty()) tokenizer_ = hf::tokenizer_files_in(weights->tokenizer());
  log::info("weights: {}, xxh3 {}; they were checked in {}", origin_.from, origin_.content,
            io::short_duration(base::monotonic_seconds() - begin));
}

/// Throws DataError if the data was made with another tokenizer than the model's. A model without a tokenizer
/// gets the data's.
void Run::settle_tokenizer() {
  const std::string kept = output_.path() + "/" + hf::kCompanionFolder;
  std::error_code error;
  const bool has_kept = !origin_.tokenizer.empty() && std::filesystem::is_directory(kept, error);
  const std::string models = !tokenizer_.empty()
                                 ? std::filesystem::path(tokenizer_.front().path).parent_path().string()
                                 : (has_kept ? kept : "");
  if (!models.empty()) {
    if (const std::string problem = other_tokenizer(job_, models, files_); !problem.empty())
      throw base::data_error(problem);
    return;
  }
  const RunTokenizer found = run_tokenizer(job_, files_);
  if (found.lost)
    warn_early(found.missing +
               ": checkpoints and exported models will have no tokenizer; name its file by "
               "evaluate.tokenizer");
  if (found.file.empty() || !found.tokenizer) return;
  const io::TokenizerInfo& info = found.tokenizer->info();
  std::vector<hf::TokenizerFile> files = hf::tokenizer_files_with(found.file);
  const hf::Origin made = hf::tokenizer_origin(files, info.bos, info.eos ? info.eos : found.end);
  if (!origin_.tokenizer.empty() && origin_.tokenizer != made.tokenizer) return;
  origin_.tokenizer = made.tokenizer;
  if (origin_.generation_config.empty() && origin_.config.empty())
    origin_.generation_config = made.generation_config;
  tokenizer_ = std::move(files);
}

/// Throws CheckpointError for other base weights: adapters are only valid with the weights that they were
/// trained with, and preferences with their reference.
void Run::require_same_base(const std::string& path, const std::string& content) const {
  if (content == origin_.content)
    return log::info("{}: {}, xxh3 {}", job_.model.lora.on() ? "base weights" : "reference", path, content);
  throw base::checkpoint_error((job_.model.lora.on() ? "the adapters of " : "the weights of ") +
                               start_.resume_path + " were trained beside the weights of " + origin_.from +
                               " (xxh3 " + origin_.content + "), and model.from, " + path +
                               ", has other weights or settings (xxh3 " + content +
                               "): name the same weights in model.from, or give the job another `output` to "
                               "start anew");
}

/// Completes a run that was killed after its last checkpoint: its end in the events and trackers, the report,
/// and a copy that the durable tier lacks.
AgentResult Run::already_done() {
  log::info("all {} steps are done already: {}", job_.steps, start_.resume_path);
  remove_left_targets();
  if (!membership_.leads()) return {step_, 0};
  if (left_to_copy_) {
    begin_durable();
    drain_durable();
  }
  const bool ended = io::read_earlier_run(output_.steps(), output_.events(), step_).ended;
  if (!ended) {
    sinks_.add(std::make_unique<io::EventLogSink>(output_.events(), step_));
    open_trackers();
  }
  const bool reports = !ended || !output_.report_is_current();
  if (reports) sinks_.add(report_sink());
  io::RunInfo info = run_info();
  info.device = resumed_->environment["processor"];
  info.threads = std::atoi(resumed_->environment["threads"].c_str());
  sinks_.each(&io::MetricsSink::on_start, info);
  if (!ended) record_done();
  finish("done");
  if (reports) log::info("the report was written from the logs: {}", output_.report());
  return {step_, 0};
}

/// Called if there is no checkpoint, so the run would begin at step 1. Throws CheckpointError if the records
/// name a completed checkpoint: it is lost, or on a file system that is not mounted, and the records must not
/// be overwritten. A run that ended before its first checkpoint has nothing to lose.
void Run::refuse_records() {
  const std::optional<std::int64_t> step = output_.recorded_step();
  if (!step) return;
  if (output_.records_no_checkpoint()) {
    warn_early("the run ended after step " + std::to_string(*step) +
               ", before its first checkpoint: it begins at step 1 again");
    return;
  }
  throw base::checkpoint_error(
      output_.path() + " holds the records of a run up to step " + std::to_string(*step) + ", but " +
      output_.checkpoints() +
      " holds no complete checkpoint: bring it back (is a file system not mounted?), or "
      "begin at step 1 with --fresh, which moves the directory aside: " +
      options_.fresh_command);
}

void Run::warn_early(const std::string& message) {
  log::warn("{}", message);
  early_warnings_.push_back(message);
}

}  // namespace trainerd::core::run
