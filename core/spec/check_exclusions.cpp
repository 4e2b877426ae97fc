#include "core/spec/check_exclusions.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "core/spec/json.h"
#include "kernels/base/error.h"

namespace trainerd::core::spec {
namespace {

class Exclusions {
 public:
  Exclusions(const std::vector<Field>& fields, const KeyFacts& facts)
      : fields_(fields), facts_(facts), defaults_(spec::fields_of(empty_)) {}

  std::vector<KeyProblem> run() const {
    std::vector<KeyProblem> problems;
    for (const Field& field : fields_) {
      if (!field.idle.empty()) continue;
      const auto applies = [this](const Exclusion& exclusion) { return this->applies(exclusion); };
      const auto found = std::ranges::find_if(field.exclusions, applies);
      if (found != field.exclusions.end()) problems.push_back({field.path, found->what});
    }
    return problems;
  }

 private:
  bool applies(const Exclusion& exclusion) const {
    const KeySays& own = exclusion.own;
    if (facts_.bad(own.path) || !says(own)) return false;
    // A preset's word gives way to the job's.
    if (own.says == Says::word && !facts_.given_by_job(own.path)) return false;
    return std::ranges::all_of(
        exclusion.others, [this](const KeySays& other) { return !facts_.bad(other.path) && says(other); });
  }

  bool says(const KeySays& key) const {
    if (key.says == Says::anything) return facts_.given(key.path);
    const auto at = std::ranges::find_if(fields_, [&](const Field& f) { return f.path == key.path; });
    base::check(at != fields_.end(), "an exclusion names a key of the table");
    const auto value = value_json(*at);
    if (key.says == Says::not_default)
      return value != value_json(defaults_[static_cast<std::size_t>(at - fields_.begin())]);
    return key.word == (value.is_string() ? value.get<std::string>() : value.dump());
  }

  const std::vector<Field>& fields_;
  const KeyFacts& facts_;
  job::JobSpec empty_;
  std::vector<Field> defaults_;
};

}  // namespace

std::vector<KeyProblem> exclusion_problems(const std::vector<Field>& fields, const KeyFacts& facts) {
  return Exclusions(fields, facts).run();
}

}  // namespace trainerd::core::spec
