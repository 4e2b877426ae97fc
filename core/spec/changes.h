#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/job/job.h"

namespace trainerd::core::spec {

/// A key whose value has changed. Values are as in the resolved job; empty: the key had no value.
struct KeyChange {
  std::string key;
  std::string was;
  std::string is;
};

/// All keys of the resolved job with their values, in the order of the document.
std::vector<std::pair<std::string, std::string>> key_values(const job::JobSpec& job);

/// The keys in which a job differs from a resolved job of an earlier run, in the order of the resolved job. A
/// key that only one of them has, with its default value, does not differ, because versions of this program
/// know different keys. Nothing if `was` is no YAML document.
std::optional<std::vector<KeyChange>> changed_keys(const std::string& was, const job::JobSpec& now);

/// The values of a key in several jobs; empty: the job does not have the key.
struct KeyValues {
  std::string key;
  std::vector<std::string> values;  ///< by job
};

/// The keys in which resolved jobs differ, in the order of the first job that has each key. A missing key
/// counts as its default, because versions of this program know different keys. A text that is no YAML
/// document has no keys and causes no differences. `name` and `output` always differ and are left out.
std::vector<KeyValues> differing_keys(const std::vector<std::string>& jobs);

/// "optimizer.lr: 0.001 -> 0.0003".
std::string to_text(const KeyChange& change);

}  // namespace trainerd::core::spec
