#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/job/job.h"
#include "core/run/worker/reference.h"
#include "core/run/worker/run_tokenizer.h"
#include "core/train/trainer.h"
#include "io/choices/choices.h"
#include "io/records/records.h"
#include "io/tokens/token_blend.h"

namespace trainerd::core::run {

/// The evaluations of a rank. Each runs through all validation sets and then through all question sets.
class Evaluator {
 public:
  enum class Duty : std::uint8_t {
    take_part,
    record  ///< this rank also makes the record
  };
  /// Opens every validation set, and reads and encodes every question set. Throws DataError.
  Evaluator(const job::JobSpec& job, train::Trainer& trainer, const io::DataFiles& files, Duty duty);

  /// For loss.dpo: the pairs that the evaluations read, by set; and the reference's log-probabilities for
  /// them.
  std::vector<ReferencePairs> pairs() const;
  void use(std::shared_ptr<const ReferenceTable> reference) { reference_ = std::move(reference); }

  /// Notices for the user, before the first evaluation.
  const std::vector<io::NoticeRecord>& notices() const { return notices_; }

  struct Hooks {
    std::function<bool()> stop_asked;  ///< asked before each global batch: this rank's vote to stop
    std::function<void()> batch_done;  ///< throws if the device has failed
    std::function<void(io::EvaluationProgress)> show;  ///< called on the rank that makes the record
  };
  struct Result {
    bool complete = true;  ///< false: stopped before the last batch; there is no record
    bool stop = false;     ///< some rank voted to stop
    io::EvaluationRecord record = {};
  };
  Result run(std::int64_t step, const Hooks& hooks);

 private:
  struct Set {
    std::string name;
    std::shared_ptr<io::TokenBlend> data;  ///< shared: a loader's thread may outlive this
    std::int64_t batches = 0;
    /// Bytes of text of an evaluation's counted tokens, for token files; none if unknown.
    std::optional<double> text_bytes = {};
  };
  struct Questions {
    std::string name;
    std::shared_ptr<const io::Choices> choices;
    std::int64_t batches = 0;  ///< number of global batches for all texts
  };
  struct Pass;
  Result run_all(std::int64_t step, const Hooks& hooks);
  void open_questions(const RunTokenizer& found);
  void count_text_bytes();
  double text_bytes_of(const Set& set, const std::vector<std::int32_t>& bytes_of_id) const;
  std::unique_ptr<train::BatchLoader> loader_of(const Set& set) const;
  io::ValidationRecord evaluate(const Set& set, Pass& pass);
  io::ValidationRecord evaluate_pairs(const Set& set, Pass& pass);
  io::ChoiceRecord answer(const Questions& questions, Pass& pass);

  const job::JobSpec& job_;
  train::Trainer& trainer_;
  Duty duty_;
  std::vector<Set> sets_;
  std::shared_ptr<const ReferenceTable> reference_;  ///< with loss.dpo
  std::vector<Questions> questions_;
  bool names_sets_ = false;
  std::vector<std::int32_t> bytes_of_id_;  ///< Tokenizer::text_bytes; empty: unknown, or counted already
  std::vector<io::NoticeRecord> notices_;
};

}  // namespace trainerd::core::run
