#include "core/spec/field_table.h"

namespace trainerd::core::spec {
namespace {

constexpr double kMaxEvaluationSteps = 1e12;

std::vector<Field> fields_of_validation_set(io::ValidationSet& s) {
  FieldTable t;
  t.add("name", &s.name,
        "of its loss in logs, metrics and trackers: letters, digits, `_`, `-` and `.`, 64 at most")
      .needed();
  t.add("path", &s.path, "its files, directories or glob patterns, as in `train`").needed();
  t.add("mask", &s.mask, "its loss masks, as in `data.mask`").or_else("what a `dataset.json` says");
  t.add("batches", &s.batches, "global batches of an evaluation, as `evaluate.batches`")
      .between(1, kMaxEvaluationSteps)
      .or_else("`evaluate.batches`");
  return t.take();
}

std::vector<Field> fields_of_choice_set(job::ChoiceSet& s) {
  FieldTable t;
  t.add("name", &s.name, "of its accuracy in logs, metrics and trackers, as of a validation set").needed();
  t.add("path", &s.path,
        "a JSONL file: each line is `{\"prompt\": text, \"choices\": [text, ...], \"answer\": number from 0, "
        "or "
        "the right choice's text}`")
      .needed();
  t.add("questions", &s.questions, "taken of it, from its start")
      .between(1, kMaxEvaluationSteps)
      .or_else("all");
  return t.take();
}

}  // namespace

void add_validation(FieldTable& t, io::DataOptions& d, const std::string& idle) {
  t.add("data.valid", &d.valid, "the same for validation: one set without a name")
      .or_else("none")
      .idle_if(!idle.empty(), idle);
  t.add("data.valid_sets", MapList(d.valid_sets, fields_of_validation_set),
        "validation sets with names, each with a loss of its own. `valid` or `valid_fraction` may be given "
        "too: "
        "it is the first set, named `valid`. What goes by one validation loss (sweeps, `validation_loss` in "
        "trackers) goes by the first set")
      .or_else("none")
      .idle_if(!idle.empty(), idle);
}

void add_evaluation(FieldTable& t, job::JobSpec& job) {
  job::EvaluateOptions& e = job.evaluate;
  t.add("evaluate.every", &e.every, "steps between evaluations; 0: never").between(0, kMaxEvaluationSteps);
  t.add("evaluate.batches", &e.batches,
        "global batches of an evaluation, from the start of the validation data; at most the whole batches "
        "that it holds")
      .between(0, kMaxEvaluationSteps)
      .or_else("required with `every`");
  t.add("evaluate.tokenizer", &e.tokenizer,
        "the `tokenizer.json`, SentencePiece model, or `bytes` by which the data was made, for bits per byte "
        "and "
        "`choices`")
      .or_else(
          "of `format: text` bytes; else the file that the data's `dataset.json` names, if it is still "
          "there and the same; without it there are no bits per byte");
  t.add("evaluate.choices", MapList(e.choices, fields_of_choice_set),
        "sets of questions with several choices, answered at each evaluation by the choice that is the "
        "likeliest "
        "behind the prompt, and by the likeliest per character (the `acc` and `acc_norm` of "
        "lm-evaluation-harness). "
        "Each choice is a sequence of an evaluation")
      .or_else("none")
      .not_with(
          "loss.dpo.beta",
          "are sequences of their own, and with loss.dpo a sample is a pair of answers: leave them out, and "
          "answer them by a job without loss.dpo, with model.from");
  t.add("evaluate.ema", &e.average,
        "evaluations are of the averaged weights (`ema`) in place of the last ones; needs `precision.master: "
        "fp32`")
      .idle_if(e.every == 0 || !job.optimizer.average.on(),
               e.every == 0 ? "evaluate.every is 0" : "ema.decay is 0, so there are no averaged weights");
}

}  // namespace trainerd::core::spec
