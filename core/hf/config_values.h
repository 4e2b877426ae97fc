#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/hf/config_fields.h"

// Typed access to config.json values. Internal to core/hf. A value of the wrong type becomes a problem of the
// reading.

namespace trainerd::core::hf {

/// The value as text, for a message.
std::string shown(const nlohmann::json& value);
/// True if missing or null.
bool absent(const nlohmann::json* value);
/// The value of a key; null: there is none.
const nlohmann::json* find(const nlohmann::json& object, const std::string& key);
/// An integer of at least 1.
std::optional<std::int64_t> read_size(Reading& r, const std::string& name, const nlohmann::json& value);
/// A number above 0.
std::optional<double> read_real(Reading& r, const std::string& name, const nlohmann::json& value);
std::optional<bool> read_flag(Reading& r, const std::string& name, const nlohmann::json* value,
                              bool fallback);
/// Copies the source's value, if there is one.
void keep(Writing& w, const std::string& name);

}  // namespace trainerd::core::hf
