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

/// "optimizer.lr: 0.001 -> 0.0003".
std::string to_text(const KeyChange& change);

}  // namespace trainerd::core::spec
