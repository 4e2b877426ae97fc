#include "core/run/worker/evaluator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "core/run/worker/batches.h"
#include "core/run/worker/evaluation.h"
#include "core/train/batch_loader.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {

/// The evaluation under way.
struct Evaluator::Pass {
  std::int64_t step = 0;
  const Hooks& hooks;
  std::int64_t batches = 0;  ///< over all sets
  std::int64_t done = 0;
  bool stop = false;

  void batch_done(bool stop_asked, Duty duty) {
    hooks.batch_done();
    ++done;
    stop = stop_asked;
    if (duty == Duty::record && !stopped_early()) hooks.show({step, done, batches});
  }
  /// A stop that comes with the last batch leaves nothing out.
  bool stopped_early() const { return stop && done < batches; }
};

Evaluator::Evaluator(const job::JobSpec& job, train::Trainer& trainer, const io::DataFiles& files, Duty duty)
    : job_(job), trainer_(trainer), duty_(duty), names_sets_(!job.data.valid_sets.empty()) {
  for (const io::ValidationSet& set : io::validation_sets(job.data)) {
    Set& opened = sets_.emplace_back();
    opened.name = set.name;
    opened.data =
        std::make_shared<io::TokenBlend>(io::TokenBlend::validation(job.data, sample_shape(job), set, files));
    opened.batches = evaluation_batches(job, set, opened.data->samples());
    if (auto notice = fewer_batches_notice(job, set, opened.batches)) notices_.push_back(std::move(*notice));
  }
  if ((duty != Duty::record || job.loss.dpo.on()) && job.evaluate.choices.empty()) return;
  const RunTokenizer found = run_tokenizer(job, files);
  // In text data each token is a byte.
  if (duty == Duty::record && found.tokenizer && job.data.format == io::DataFormat::tokens)
    bytes_of_id_ = found.tokenizer->text_bytes();
  open_questions(found);
}

void Evaluator::open_questions(const RunTokenizer& found) {
  if (!job_.evaluate.choices.empty() && !found.tokenizer)
    throw base::data_error("evaluate.choices: questions are encoded by the tokenizer of the data, and " +
                           found.missing + ": name it by evaluate.tokenizer");
  for (const job::ChoiceSet& set : job_.evaluate.choices) {
    Questions& opened = questions_.emplace_back();
    opened.name = set.name;
    opened.choices = std::make_shared<const io::Choices>(
        io::Choices::Options{.path = set.path, .questions = set.questions, .seq_len = job_.model.seq_len},
        *found.tokenizer);
    const auto texts = static_cast<std::int64_t>(opened.choices->texts().size());
    opened.batches = (texts + job_.batch.global - 1) / job_.batch.global;
    if (const std::int64_t shortened = opened.choices->shortened(); shortened > 0)
      notices_.push_back({io::NoticeKind::warning,
                          0,
                          "evaluate.choices: " + set.name + ": " + std::to_string(shortened) + " of its " +
                              std::to_string(texts) +
                              " texts have more tokens than model.seq_len allows: the beginnings of their "
                              "prompts are left out",
                          {}});
  }
}

std::vector<ReferencePairs> Evaluator::pairs() const {
  std::vector<ReferencePairs> all;
  for (const Set& set : sets_) all.push_back({set.data, 0, set.batches * job_.batch.global});
  return all;
}

/// Counts once: every evaluation has the same tokens.
void Evaluator::count_text_bytes() {
  if (bytes_of_id_.empty()) return;
  for (Set& set : sets_)
    if (const double bytes = text_bytes_of(set, bytes_of_id_); bytes > 0) set.text_bytes = bytes;
  bytes_of_id_.clear();
}

/// Returns 0 if a counted token's bytes are unknown, as for an id beyond the tokenizer's.
double Evaluator::text_bytes_of(const Set& set, const std::vector<std::int32_t>& bytes_of_id) const {
  train::BatchShape shape = trainer_.batch_shape();
  shape.micro = shape.dp = shape.cp = 1;
  shape.dp_rank = shape.cp_rank = 0;
  const train::ReadSample read = sample_reader(trainer_, set.data, 0);
  train::HostSample sample;
  train::HostBatch batch;
  double bytes = 0;
  for (std::int64_t b = 0; b < set.batches; ++b)
    for (std::int64_t i = 0; i < shape.global; ++i) {
      train::make_batch(
          shape, {.microbatch = i},
          [&](std::int64_t number, train::HostSample& to) { read(b * shape.global + number, to); }, sample,
          batch);
      for (std::size_t t = 0; t < batch.targets_T.size(); ++t) {
        if (batch.loss_weight_T[t] == 0) continue;
        const auto id = static_cast<std::size_t>(batch.targets_T[t]);
        if (id >= bytes_of_id.size() || bytes_of_id[id] < 0) return 0;
        bytes += bytes_of_id[id];
      }
    }
  return bytes;
}

std::unique_ptr<train::BatchLoader> Evaluator::loader_of(const Set& set) const {
  return make_loader(job_, trainer_, set.data, parallel::Pass::evaluate,
                     std::array{job::BatchSpan{job_.batch.global, set.batches}}, 0);
}

io::ValidationRecord Evaluator::evaluate(const Set& set, Pass& pass) {
  const auto batches = loader_of(set);
  EvaluationMean mean(job_.tokens_per_step());
  for (std::int64_t b = 0; b < set.batches; ++b) {
    const train::Trainer::Evaluation batch = trainer_.evaluate(*batches, pass.hooks.stop_asked());
    pass.batch_done(batch.stop, duty_);
    mean.add(batch.loss, batch.loss_weight);
    if (pass.stopped_early()) return {};
  }
  io::ValidationRecord record{
      .set = set.name, .loss = mean.value(set.name), .tokens = set.batches * job_.tokens_per_step()};
  const std::optional<double> bytes =
      job_.data.format == io::DataFormat::text ? mean.counted_tokens() : set.text_bytes;
  if (bytes) record.bits_per_byte = mean.sum() / std::log(2.0) / *bytes;
  return record;
}

io::ValidationRecord Evaluator::evaluate_pairs(const Set& set, Pass& pass) {
  const ReferenceTable::Part part =
      ReferenceTable::kTraining + 1 + static_cast<std::size_t>(&set - sets_.data());
  const std::int64_t global = job_.batch.global;
  const auto batches = loader_of(set);
  PreferenceMean mean(job_.loss.dpo.beta);
  for (std::int64_t b = 0; b < set.batches; ++b) {
    const train::Trainer::SampleLosses batch = trainer_.sample_losses(*batches, pass.hooks.stop_asked());
    pass.batch_done(batch.stop, duty_);
    for (std::int64_t i = 0; i < global; ++i) {
      const auto at = static_cast<std::size_t>(2 * i);
      mean.add({batch.loss[at], batch.loss[at + 1]},
               reference_->at(part, set.data->sample_at(b * global + i)));
    }
    if (pass.stopped_early()) return {};
  }
  return {.set = set.name,
          .loss = mean.loss(),
          .tokens = set.batches * job_.tokens_per_step(),
          .rewards = mean.rewards()};
}

io::ChoiceRecord Evaluator::answer(const Questions& questions, Pass& pass) {
  // Each text is one sample. The padding after it does not affect its tokens: attention is causal, and
  // padding has no experts.
  const auto read = [choices = questions.choices](std::int64_t number, train::HostSample& to) {
    std::fill(to.tokens_S1.begin(), to.tokens_S1.end(), 0);
    std::fill(to.loss_weight_S.begin(), to.loss_weight_S.end(), 0.0f);
    to.real = 0;
    if (std::cmp_greater_equal(number, choices->texts().size())) return;
    const io::ChoiceText& text = choices->texts()[static_cast<std::size_t>(number)];
    std::copy(text.tokens.begin(), text.tokens.end(), to.tokens_S1.begin());
    to.real = static_cast<std::int64_t>(text.tokens.size());
    std::fill(to.loss_weight_S.begin() + text.prompt_tokens - 1,
              to.loss_weight_S.begin() + static_cast<std::ptrdiff_t>(text.tokens.size()) - 1, 1.0f);
  };
  train::BatchLoader batches(
      {.shape = trainer_.batch_shape(),
       .passes = {{trainer_.batch_requests(parallel::Pass::evaluate), questions.batches, job_.batch.global}},
       .ahead = job_.data.prefetch},
      read);
  std::vector<double> losses;
  for (std::int64_t b = 0; b < questions.batches; ++b) {
    const train::Trainer::SampleLosses batch = trainer_.sample_losses(batches, pass.hooks.stop_asked());
    pass.batch_done(batch.stop, duty_);
    losses.insert(losses.end(), batch.loss.begin(), batch.loss.end());
    if (pass.stopped_early()) return {};
  }
  losses.resize(questions.choices->texts().size());
  const io::ChoiceAccuracy score = questions.choices->score(losses);
  return {.set = questions.name,
          .questions = questions.choices->questions(),
          .accuracy = score.accuracy,
          .accuracy_norm = score.accuracy_norm};
}

Evaluator::Result Evaluator::run(std::int64_t step, const Hooks& hooks) {
  if (!job_.evaluate.average) return run_all(step, hooks);
  trainer_.read(model::ParamStore::Read::averages);
  Result result = run_all(step, hooks);
  trainer_.read(model::ParamStore::Read::weights);
  return result;
}

Evaluator::Result Evaluator::run_all(std::int64_t step, const Hooks& hooks) {
  const double start = base::monotonic_seconds();
  count_text_bytes();
  Pass pass{.step = step, .hooks = hooks};
  for (const Set& set : sets_) pass.batches += set.batches;
  for (const Questions& questions : questions_) pass.batches += questions.batches;
  Result result;
  io::EvaluationRecord& record = result.record;
  for (const Set& set : sets_) {
    record.sets.push_back(reference_ ? evaluate_pairs(set, pass) : evaluate(set, pass));
    if (pass.stopped_early()) return {.complete = false, .stop = true};
  }
  for (const Questions& questions : questions_) {
    record.choices.push_back(answer(questions, pass));
    if (pass.stopped_early()) return {.complete = false, .stop = true};
  }
  result.stop = pass.stop;
  record.step = step;
  record.loss = record.sets[0].loss;
  record.tokens = record.sets[0].tokens;
  record.bits_per_byte = record.sets[0].bits_per_byte;
  record.rewards = record.sets[0].rewards;
  record.averaged = job_.evaluate.average;
  if (!names_sets_) record.sets.clear();
  record.seconds = base::monotonic_seconds() - start;
  return result;
}

}  // namespace trainerd::core::run
