#include "core/run/nodes/state_json.h"

#include <nlohmann/json.hpp>

#include "core/run/wire/slices_json.h"

namespace trainerd::core::run {

using nlohmann::json;

json to_json(const StateCut& cut) { return {cut.run, cut.attempt, cut.step, cut.cursor, cut.tokens}; }

StateCut cut_from(const json& list) { return {list.at(0), list.at(1), list.at(2), list.at(3), list.at(4)}; }

json to_json(const std::vector<StateSource>& sources) {
  json list = json::array();
  for (const StateSource& source : sources)
    list.push_back(json::array({source.of, source.from, source.copy}));
  return list;
}

std::vector<StateSource> sources_from(const json& list) {
  std::vector<StateSource> sources;
  for (const json& source : list) sources.push_back({source.at(0), source.at(1), source.at(2)});
  return sources;
}

json to_json(const StateShown& shown) {
  json offers = json::array();
  for (const StateOffer& offer : shown.offers)
    offers.push_back({{"cut", to_json(offer.cut)},
                      {"node", offer.node},
                      {"taken", offer.taken},
                      {"own", offer.own},
                      {"head", offer.head},
                      {"slices", slices_to_json(offer.slices)}});
  return {{"type", "state_shown"}, {"number", shown.number}, {"last", shown.last}, {"offers", offers}};
}

StateShown state_shown_from(const json& j) {
  StateShown shown{j.at("number"), j.at("last"), {}};
  for (const auto& offer : j.at("offers"))
    shown.offers.push_back({cut_from(offer.at("cut")), offer.at("node"), offer.at("taken"), offer.at("own"),
                            offer.at("head"), slices_from(offer.at("slices"))});
  return shown;
}

}  // namespace trainerd::core::run
