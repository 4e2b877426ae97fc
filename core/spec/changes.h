#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/job/job.h"

namespace trainerd::core::spec {

/// A key of the job that has another value than before. Values are as the resolved job writes them; empty:
/// the key had none.
struct KeyChange {
  std::string key;
  std::string was;
  std::string is;
};

/// Each key of the resolved job with its value, in the order of the document.
std::vector<std::pair<std::string, std::string>> key_values(const job::JobSpec& job);

/// The keys in which a job differs from a resolved job that an earlier run wrote, in the order of the
/// resolved job. A key that only one of them has, with its default, does not differ: versions of this program
/// know different keys. Empty when `was` is no YAML document.
std::optional<std::vector<KeyChange>> changed_keys(const std::string& was, const job::JobSpec& now);

/// The values that several jobs have of a key; empty: that job has none.
struct KeyValues {
  std::string key;
  std::vector<std::string> values;  ///< by job
};

/// The keys in which resolved jobs differ, in the order of the first job that has each. A key that a job does
/// not have counts as its default there: versions of this program know different keys. A text that is no YAML
/// document has no keys, and does not make others differ. `name` and `output` always differ, and are left
/// out.
std::vector<KeyValues> differing_keys(const std::vector<std::string>& jobs);

/// "optimizer.lr: 0.001 -> 0.0003".
std::string to_text(const KeyChange& change);

}  // namespace trainerd::core::spec
