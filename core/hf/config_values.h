#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/hf/config_fields.h"

// Values of a config.json, by type. For sources of this room alone. What is not of its type is a problem of
// the reading.

namespace trainerd::core::hf {

/// For a message.
std::string shown(const nlohmann::json& value);
/// Not there, or null.
bool absent(const nlohmann::json* value);
/// Null: there is none.
const nlohmann::json* find(const nlohmann::json& object, const std::string& key);
/// From 1.
std::optional<std::int64_t> read_size(Reading& r, const std::string& name, const nlohmann::json& value);
/// Above 0.
std::optional<double> read_real(Reading& r, const std::string& name, const nlohmann::json& value);
std::optional<bool> read_flag(Reading& r, const std::string& name, const nlohmann::json* value,
                              bool fallback);
/// The source's value, if it has one.
void keep(Writing& w, const std::string& name);

}  // namespace trainerd::core::hf
