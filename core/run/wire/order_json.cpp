#include "core/run/wire/order_json.h"

#include <nlohmann/json.hpp>

namespace trainerd::core::run {

nlohmann::json order_to_json(const io::DataOrder& order) {
  nlohmann::json sources = nlohmann::json::array();
  for (const io::SourceStart& source : order.sources)
    sources.push_back(nlohmann::json::array({source.stream, source.taken}));
  return {{"start", order.start}, {"sources", std::move(sources)}};
}

io::DataOrder order_from(const nlohmann::json& json) {
  io::DataOrder order{.start = json.at("start")};
  for (const nlohmann::json& source : json.at("sources"))
    order.sources.push_back({.stream = source.at(0), .taken = source.at(1)});
  return order;
}

}  // namespace trainerd::core::run
