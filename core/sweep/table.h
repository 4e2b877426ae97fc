#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/sweep/sweep.h"

namespace trainerd::core::sweep {

/// All keys that the sweep sets in any job, in the order of their first occurrence.
std::vector<std::string> keys_of(const Sweep& sweep);
/// The job's value of a key: the sweep's, else the base's or the default; null: none.
nlohmann::ordered_json json_of(const SweepJob& job, const std::string& key);
/// The same as text: numbers with four digits, texts without quotes; "-": none.
std::string value_of(const SweepJob& job, const std::string& key);

/// ": optimizer.lr 0.001, model.hidden 64"; empty for a job that sets no key.
std::string set_text(const SweepJob& job);

std::string first_line(const std::string& text);
/// "1.2346"; "-" for none.
std::string loss_text(const std::optional<double>& loss);
/// Formats rows of cells in columns; the first row is the header.
std::string text_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace trainerd::core::sweep
