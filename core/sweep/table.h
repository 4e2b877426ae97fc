#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/sweep/sweep.h"

namespace trainerd::core::sweep {

/// The keys that any job of the sweep sets, in the order of their first.
std::vector<std::string> keys_of(const Sweep& sweep);
/// The job's value of a key: the sweep's, or else the base's or the default; null: it has none.
nlohmann::ordered_json json_of(const SweepJob& job, const std::string& key);
/// The same for people: numbers with four digits, texts without quotes; "-": it has none.
std::string value_of(const SweepJob& job, const std::string& key);

/// ": optimizer.lr 0.001, model.hidden 64"; empty for a job that sets no key.
std::string set_text(const SweepJob& job);

std::string first_line(const std::string& text);
/// "1.2346"; "-" for none.
std::string loss_text(const std::optional<double>& loss);
/// Rows of cells in columns; the first row is the head.
std::string text_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace trainerd::core::sweep
