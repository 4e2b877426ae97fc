#include "core/run/wire/hashes_json.h"

#include <nlohmann/json.hpp>

namespace trainerd::core::run {

nlohmann::json to_json(const CopiesHashed& m) {
  return {{"type", "hashes"}, {"rank", m.rank},     {"step", m.step},
          {"names", m.names}, {"hashes", m.hashes}, {"attempt", m.attempt}};
}

CopiesHashed copies_hashed_from(const nlohmann::json& j) {
  return {j.at("rank"), j.at("step"), j.at("names"), j.at("hashes"), j.at("attempt")};
}

}  // namespace trainerd::core::run
