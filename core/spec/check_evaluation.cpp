#include "core/spec/check_evaluation.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string>

namespace trainerd::core::spec {
namespace {

constexpr std::size_t kLongestName = 64;

// Names of metric series and trackers, which take these characters unescaped.
bool is_set_name(const std::string& name) {
  return !name.empty() && name.size() <= kLongestName && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  });
}

class EvaluationChecks {
 public:
  EvaluationChecks(const job::JobSpec& job, const Problems& bad) : job_(job), bad_(bad) {}
  std::vector<KeyProblem> run() {
    const io::DataOptions& d = job_.data;
    const bool files = d.format != io::DataFormat::synthetic;
    if (files && good("evaluate.every") && good("data.valid") && good("data.valid_sets") &&
        job_.evaluate.every > 0 && io::validation_sets(d).empty())
      add("evaluate.every",
          std::string("there is nothing to evaluate on: give data.valid, data.valid_sets or "
                      "data.valid_fraction, or set it to 0") +
              (job_.evaluate.choices.empty() ? ""
                                             : "; evaluate.choices are answered beside validation data"));
    if (good("evaluate.every") && good("evaluate.choices") && job_.evaluate.every == 0 &&
        !job_.evaluate.choices.empty())
      add("evaluate.choices", "has no effect without evaluations: set evaluate.every");
    if (files && d.valid_fraction > 0 && !d.valid.empty())
      add("data.valid_fraction", "data.valid is given too: leave one of them out");
    if (d.format == io::DataFormat::text && d.valid_fraction > 0)
      add("data.valid_fraction",
          "a text does not say where its documents begin: name files for validation in data.valid, or give "
          "token files with documents and format: tokens");
    if (good("evaluate.every") && good("evaluate.batches") && job_.evaluate.every > 0 &&
        job_.evaluate.batches == 0)
      add("evaluate.batches", "0 batches cannot be evaluated (nearest valid: 1)");
    if (files) validation_sets();
    choice_sets();
    if (good("evaluate.ema") && good("precision") && job_.evaluate.average &&
        job_.precision.master != kernels::DType::f32)
      add("evaluate.ema",
          "the averages are fp32 and take the place of the weights, which precision.master holds in bf16: "
          "set that "
          "to fp32, or leave it out and evaluate what `trainerd export --ema` writes");
    return std::move(problems_);
  }

 private:
  bool good(const std::string& path) const { return !bad_.bad(path); }
  void add(const std::string& path, const std::string& what) { problems_.push_back({path, what}); }

  void validation_sets() {
    const io::DataOptions& d = job_.data;
    std::set<std::string> names;
    if (!d.valid.empty() || d.valid_fraction > 0) names.insert(io::kUnnamedSet);
    for (std::size_t i = 0; i < d.valid_sets.size(); ++i) {
      const std::string path = "data.valid_sets[" + std::to_string(i) + "]";
      set_name(path + ".name", d.valid_sets[i].name, names);
      if (good(path + ".path") && d.valid_sets[i].path.empty())
        add(path + ".path", "is empty: give at least one file, directory or pattern");
    }
  }

  void choice_sets() {
    const job::EvaluateOptions& e = job_.evaluate;
    std::set<std::string> names;
    for (std::size_t i = 0; i < e.choices.size(); ++i) {
      const std::string path = "evaluate.choices[" + std::to_string(i) + "]";
      set_name(path + ".name", e.choices[i].name, names);
      if (good(path + ".path") && e.choices[i].path.empty())
        add(path + ".path", "is empty: name a JSONL file");
    }
    if (!e.choices.empty() && job_.data.format == io::DataFormat::synthetic && good("evaluate.tokenizer") &&
        e.tokenizer.empty())
      add("evaluate.choices",
          "synthetic tokens stand for no text: name the tokenizer of the questions by evaluate.tokenizer");
  }

  void set_name(const std::string& path, const std::string& name, std::set<std::string>& names) {
    if (!good(path) || name.empty()) {
      if (good(path)) add(path, "is empty: give it a name");
      return;
    }
    if (!is_set_name(name))
      add(path, show(name) + " is no name of a set: letters, digits, _, - and . make one, " +
                    std::to_string(kLongestName) + " at most");
    else if (!names.insert(name).second)
      add(path, name == io::kUnnamedSet
                    ? "data.valid or data.valid_fraction makes the set named valid: give another name"
                    : "two sets are named " + name + ": give each a name of its own");
  }

  const job::JobSpec& job_;
  const Problems& bad_;
  std::vector<KeyProblem> problems_;
};

}  // namespace

std::vector<KeyProblem> evaluation_problems(const job::JobSpec& job, const Problems& bad) {
  return EvaluationChecks(job, bad).run();
}

}  // namespace trainerd::core::spec
