#pragma once

#include "io/metrics/families.h"
#include "io/records/records.h"

namespace trainerd::io {

/// Results of the latest evaluation, per set.
class EvaluationGauges {
 public:
  explicit EvaluationGauges(prometheus::Registry& registry) : r_(registry) {}

  void show(const EvaluationRecord& record) {
    if (record.sets.empty()) show({}, record);
    for (const ValidationRecord& set : record.sets) show({{"set", set.set}}, set);
    for (const ChoiceRecord& set : record.choices) {
      accuracy_.Add({{"set", set.set}}).Set(set.accuracy);
      accuracy_norm_.Add({{"set", set.set}}).Set(set.accuracy_norm);
    }
  }

 private:
  /// `of`: the record or one of its sets.
  template <class Record>
  void show(const prometheus::Labels& labels, const Record& of) {
    loss_.Add(labels).Set(of.loss);
    if (of.rewards) {
      margin_.Add(labels).Set(of.rewards->margin);
      preferred_.Add(labels).Set(of.rewards->accuracy);
    } else {
      perplexity_.Add(labels).Set(perplexity(of.loss));
    }
    if (of.bits_per_byte) bits_per_byte_.Add(labels).Set(*of.bits_per_byte);
  }

  prometheus::Registry& r_;
  prometheus::Family<prometheus::Gauge>& loss_ =
      gauge(r_, "trainerd_validation_loss",
            "Loss of the latest evaluation on the validation data: mean over its "
            "tokens that count, natural log; of a named set with its name.");
  prometheus::Family<prometheus::Gauge>& perplexity_ =
      gauge(r_, "trainerd_validation_perplexity", "exp(trainerd_validation_loss).");
  prometheus::Family<prometheus::Gauge>& bits_per_byte_ =
      gauge(r_, "trainerd_validation_bpb",
            "The same loss in bits, over the bytes of text that its tokens stand for; absent where the "
            "tokenizer is not known.");
  prometheus::Family<prometheus::Gauge>& margin_ =
      gauge(r_, "trainerd_validation_reward_margin",
            "With loss.dpo, the reward of the chosen answer less that of the rejected: mean over the "
            "validation data's pairs.");
  prometheus::Family<prometheus::Gauge>& preferred_ =
      gauge(r_, "trainerd_validation_pair_accuracy_ratio",
            "With loss.dpo, share of the validation data's pairs whose chosen answer has the higher reward.");
  prometheus::Family<prometheus::Gauge>& accuracy_ =
      gauge(r_, "trainerd_choice_accuracy_ratio",
            "Share of a set's questions whose right choice is the likeliest.");
  prometheus::Family<prometheus::Gauge>& accuracy_norm_ =
      gauge(r_, "trainerd_choice_accuracy_norm_ratio", "The same by likelihood per character of the choice.");
};

}  // namespace trainerd::io
