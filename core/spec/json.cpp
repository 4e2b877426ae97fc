#include "core/spec/json.h"

#include <nlohmann/json.hpp>

#include "io/text/text.h"

namespace trainerd::core::spec {
namespace {

using Json = nlohmann::ordered_json;

// Without values that mean the same as their absence.
Json item_json(const std::vector<Field>& fields) {
  Json item = Json::object();
  for (const Field& field : fields)
    if (Json value = value_json(field); field.required || (!value.is_null() && value != 0))
      item[field.path] = std::move(value);
  return item;
}

}  // namespace

nlohmann::ordered_json value_json(const Field& field) {
  return std::visit(
      Overloaded{
          [](const std::int64_t* v) { return Json(*v); },
          [](const std::uint64_t* v) { return Json(*v); },
          [](const double* v) { return Json(*v); },
          [](const bool* v) { return Json(*v); },
          [](const std::string* v) { return v->empty() ? Json() : Json(*v); },
          [](const std::vector<std::string>* v) { return v->empty() ? Json() : Json(*v); },
          [](const std::vector<std::int64_t>* v) { return v->empty() ? Json() : Json(*v); },
          [](const std::vector<double>* v) { return v->empty() ? Json() : Json(*v); },
          [](const Choice& c) { return Json(c.word()); },
          [](const IntegerOrAuto& i) { return Json(*i.value); },
          [](const NumberPair& p) {
            return Json::array({*p.first, *p.second});
          },
          [](const Duration& d) { return Json(io::duration_text(*d.seconds)); },
          [](const StepsOrDuration& s) {
            if (s.interval->automatic) return Json("auto");
            return s.interval->seconds > 0 ? Json(io::duration_text(s.interval->seconds))
                                           : Json(s.interval->steps);
          },
          [](const RecipeName& r) { return r.recipe->name == "custom" ? Json() : Json(r.recipe->name); },
          [](const FixedWord&) { return Json(); },
          [](const BaseFile&) { return Json(); },
          [](const Subtree&) { return Json(); },
          [](const MapList& list) {
            Json items;
            for (std::size_t i = 0; i < list.size(); ++i) items.push_back(item_json(list.fields(i)));
            return items;
          },
      },
      field.storage);
}

}  // namespace trainerd::core::spec
