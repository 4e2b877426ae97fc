// Keys that exclude each other are in the schema. What JSON Schema cannot say stays with the parser: other
// conditions between keys, spellings of numbers (0x10, 1e3 for an integer, .inf), forms of addresses. The
// schema is never the stricter of the two. It uses keywords that mean the same since draft 7, because editors
// read no newer ones.
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/spec/compose.h"
#include "core/spec/fields.h"
#include "core/spec/json.h"
#include "core/spec/spec.h"
#include "io/text/json.h"
#include "io/text/text.h"

namespace trainerd::core::spec {
namespace {

using Json = nlohmann::ordered_json;

// A text may be unquoted and look like a number. It has no control characters.
Json any_text() {
  return {{"type", {"string", "number", "boolean"}},
          {"not", {{"pattern", "[\\u0000-\\u001f\\u007f]"}, {"type", "string"}}}};
}
Json some_text() {
  Json schema = any_text();
  schema["minLength"] = 1;
  return schema;
}

Json number_json(double x) {
  return x == std::floor(x) && std::abs(x) < 1e15 ? Json(static_cast<std::int64_t>(x)) : Json(x);
}

Json bounded(const char* type, const Limits& l) {
  Json schema = {{"type", type}};
  if (std::isfinite(l.low)) schema[l.above_low ? "exclusiveMinimum" : "minimum"] = number_json(l.low);
  if (std::isfinite(l.high)) schema[l.below_high ? "exclusiveMaximum" : "maximum"] = number_json(l.high);
  return schema;
}

Json integer_json(const Limits& limits) {
  Json schema = bounded("integer", limits);
  if (!schema.contains("minimum")) schema["minimum"] = std::numeric_limits<std::int64_t>::min();
  if (!schema.contains("maximum")) schema["maximum"] = std::numeric_limits<std::int64_t>::max();
  return schema;
}

Json list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }

Json duration_json(const Limits& limits) {
  Json schema = {{"type", "string"}, {"pattern", io::duration_pattern()}};
  if (limits.above_low) schema["allOf"] = Json::array({{{"pattern", "[1-9]"}}});  // more than 0
  return schema;
}

// The name of a built-in preset, or the path of a file; a variable may hold either. An empty model.preset
// means none.
Json preset_json(const std::string& path, Json names) {
  if (path == "model.preset") names.push_back("");
  Json file = any_text();
  file["type"] = "string";
  file["pattern"] = R"(/|\.yaml$|\$)";
  return {{"anyOf", {{{"type", "string"}, {"enum", std::move(names)}}, std::move(file)}}};
}

Json any_of(Json one, Json other) { return {{"anyOf", {std::move(one), std::move(other)}}}; }

Json one_of(const std::vector<std::string>& list) { return {{"type", "string"}, {"enum", list}}; }

Json type_json(const Field& field);
std::string description(const Field& field);

// An item of a list of maps.
Json item_json(const MapList& list) {
  Json schema = {{"type", "object"},
                 {"additionalProperties", false},
                 {"properties", Json::object()},
                 {"required", Json::array()}};
  list.plain_fields([&schema](const std::vector<Field>& fields) {
    for (const Field& field : fields) {
      Json& of_key = schema["properties"][field.path] = type_json(field);
      of_key["description"] = description(field);
      if (field.required) schema["required"].push_back(field.path);
    }
  });
  return schema;
}

// The values that the parser accepts for the field, except null. Null if it accepts none yet.
Json type_json(const Field& field) {
  const Limits& limits = field.limits;
  return std::visit(
      Overloaded{
          [&](const std::int64_t*) {
            return field.allowed.empty() ? integer_json(limits)
                                         : Json{{"const", std::stoll(field.allowed[0])}};
          },
          [&](const std::uint64_t*) {
            Json schema = integer_json({.low = 0});
            schema["maximum"] = std::numeric_limits<std::uint64_t>::max();
            return schema;
          },
          [&](const double*) { return bounded("number", limits); },
          [&](const bool*) {
            return Json{{"type", "boolean"}};
          },
          [&](const std::string*) {
            if (auto names = preset_names_at(field.path); !names.empty())
              return preset_json(field.path, names);
            return field.allowed.empty() ? any_text() : one_of(field.allowed);
          },
          [&](const std::vector<std::string>*) { return any_of(some_text(), list_of(some_text())); },
          [&](const std::vector<std::int64_t>*) { return list_of(integer_json(limits)); },
          [&](const std::vector<double>*) { return list_of(bounded("number", limits)); },
          [&](const Choice& choice) { return one_of(choice.words); },
          [&](const NumberPair&) {
            Json schema = list_of(bounded("number", limits));
            schema["minItems"] = schema["maxItems"] = 2;
            return schema;
          },
          [&](const IntegerOrAuto&) { return any_of(integer_json(limits), one_of({"auto"})); },
          [&](const Duration&) { return duration_json(limits); },
          [&](const StepsOrDuration& s) {
            Json either = any_of(integer_json(limits), duration_json({}));
            return s.or_auto ? any_of(either, one_of({"auto"})) : either;
          },
          [&](const RecipeName&) { return one_of(recipe_names()); },
          [&](const FixedWord& fixed) {
            const std::string_view word = fixed.word;
            double number = 0;
            const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
            const bool is_number = error == std::errc() && end == word.data() + word.size();
            if (!is_number) return one_of({fixed.word});
            return any_of({{"type", "number"}, {"enum", Json::array({number_json(number)})}},
                          one_of({fixed.word}));
          },
          [&](const BaseFile&) { return some_text(); },
          [&](const Subtree&) {
            return Json{{"type", "object"}};
          },
          [&](const MapList& list) { return list_of(item_json(list)); },
      },
      field.storage);
}

// Allows `~`, which removes a base's value.
void allow_null(Json& schema) {
  if (schema.contains("anyOf")) {
    schema["anyOf"].push_back({{"type", "null"}});
    return;
  }
  if (schema.contains("const")) {
    schema["enum"] = {schema["const"], nullptr};
    schema.erase("const");
    return;
  }
  if (schema["type"].is_string()) schema["type"] = Json::array({schema["type"]});
  schema["type"].push_back("null");
  if (schema.contains("enum")) schema["enum"].push_back(nullptr);
}

std::string description(const Field& field) {
  std::string text = field.meaning;
  if (!field.only.empty()) text += " (only " + field.only + " so far)";
  if (!field.fallback.empty()) text += ". Default: " + field.fallback;
  return text;
}

Json empty_section() {
  return {{"type", Json::array({"object"})}, {"additionalProperties", false}, {"properties", Json::object()}};
}

std::string key_of(const std::string& path) {
  const std::string section = section_of(path);
  return section.empty() ? path : path.substr(section.size() + 1);
}

// The map form of `schema`: itself, or one of its alternatives.
Json& map_form(Json& schema) { return schema.contains("anyOf") ? schema["anyOf"][1] : schema; }

// The section at `path`; creates it and its parents.
Json& section_at(Json& root, const std::string& path) {
  if (path.empty()) return root;
  Json& sections = map_form(section_at(root, section_of(path)))["properties"];
  const std::string key = key_of(path);
  if (!sections.contains(key)) {
    sections[key] = empty_section();
    allow_null(sections[key]);
  }
  return sections[key];
}

// Keys required in a job that extends nothing. A model preset, or the weights' source, may provide the
// model's keys.
Json required_keys(const std::vector<Field>& fields) {
  Json schema = {{"required", Json::array()}, {"properties", Json::object()}};
  for (const Field& field : fields) {
    const std::string section = section_of(field.path);
    if (!field.required) continue;
    if (section.empty()) {
      schema["required"].push_back(key_of(field.path));
      continue;
    }
    if (!schema["properties"].contains(section)) schema["required"].push_back(section);
    Json& keys = schema["properties"][section];
    if (section == "model") keys["if"]["anyOf"] = {{{"required", {"preset"}}}, {{"required", {"from"}}}};
    (section == "model" ? keys["else"] : keys)["required"].push_back(key_of(field.path));
  }
  return schema;
}

/// The section around both paths: "data" of "data.train" and "data.mask"; empty: the job itself.
std::string common_section(const std::string& a, const std::string& b) {
  std::string common = section_of(a);
  while (!common.empty() && !b.starts_with(common + ".")) common = section_of(common);
  return common;
}

/// The keys of a job that exclude each other, in the innermost section around them.
class SchemaExclusions {
 public:
  SchemaExclusions(Json& root, const std::vector<Field>& fields) : root_(root) {
    for (const Field& field : fields) by_path_[field.path] = &field;
  }

  void add_all() {
    for (const auto& [path, field] : by_path_)
      for (const Exclusion& exclusion : field->exclusions) add(exclusion);
  }

 private:
  void add(const Exclusion& exclusion) {
    const KeySays& own = exclusion.own;
    std::string section = section_of(own.path);
    for (const KeySays& other : exclusion.others)
      if (std::string common = common_section(own.path, other.path); common.size() < section.size())
        section = std::move(common);
    Json conditions = Json::array();
    for (const KeySays& other : exclusion.others)
      conditions.push_back(below(section, other.path, does_say(other), Missing::refused));
    Json forbidden = says_not(own);
    forbidden["errorMessage"] = exclusion.what;  // read by editors
    map_form(section_at(root_, section))["allOf"].push_back(
        {{"if", conditions.size() == 1 ? conditions[0] : Json{{"allOf", conditions}}},
         {"then", below(section, own.path, std::move(forbidden), Missing::allowed)}});
  }

  /// The values of the key that say nothing: its default, none.
  Json defaults_of(const Field& field) const {
    Json value = value_json(field);
    if (!value.is_null()) return Json::array({std::move(value), nullptr});
    if (std::holds_alternative<std::string*>(field.storage)) return Json::array({"", nullptr});
    return Json::array({Json::array(), nullptr});
  }

  Json word_of(const KeySays& key) const {
    if (std::holds_alternative<bool*>(by_path_.at(key.path)->storage)) return key.word == "true";
    return key.word;
  }

  Json does_say(const KeySays& key) const {
    if (key.says == Says::word) return {{"const", word_of(key)}};
    return {{"not", key.says == Says::anything ? Json{{"type", "null"}}
                                               : Json{{"enum", defaults_of(*by_path_.at(key.path))}}}};
  }

  Json says_not(const KeySays& key) const {
    if (key.says == Says::anything) return {{"type", "null"}};
    if (key.says == Says::not_default) return {{"enum", defaults_of(*by_path_.at(key.path))}};
    return {{"not", {{"const", word_of(key)}}}};
  }

  /// `schema` for the key at `path`, as one for the section.
  enum class Missing : std::uint8_t { allowed, refused };
  static Json below(const std::string& section, std::string path, Json schema, Missing missing) {
    while (path != section) {
      Json outer = {{"properties", {{key_of(path), std::move(schema)}}}};
      if (missing == Missing::refused)
        outer["type"] = "object", outer["required"] = Json::array({key_of(path)});
      schema = std::move(outer);
      path = section_of(path);
    }
    return schema;
  }

  Json& root_;
  std::map<std::string, const Field*> by_path_;
};

}  // namespace

std::string job_schema() {
  job::JobSpec defaults;
  const std::vector<Field> fields = fields_of(defaults);
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "trainerd job"},
               {"description", "Made by `trainerd schema`."},
               {"type", "object"},
               {"additionalProperties", false},
               {"properties", Json::object()}};
  for (const Field& field : fields) {
    Json schema = type_json(field);
    if (schema.is_null()) continue;
    const bool also_section = field.short_form || std::holds_alternative<RecipeName>(field.storage);
    if (also_section) schema = any_of(std::move(schema), empty_section());
    if (!std::holds_alternative<BaseFile>(field.storage)) allow_null(schema);
    schema["description"] = description(field);
    if (Json value = value_json(field); !value.is_null() && !field.required && field.fallback.empty())
      schema["default"] = std::move(value);
    map_form(section_at(root, section_of(field.path)))["properties"][key_of(field.path)] = std::move(schema);
  }
  SchemaExclusions(root, fields).add_all();
  root["if"] = {{"required", {"extends"}}};
  root["else"] = required_keys(fields);
  root["else"]["allOf"] = Json::array({{{"$ref", "#/$defs/given"}}});
  root["$defs"]["given"] = {{"description", "a value: `~` is for jobs that extend another"},
                            {"type", {"string", "number", "boolean", "array", "object"}},
                            {"items", {{"$ref", "#/$defs/given"}}},
                            {"additionalProperties", {{"$ref", "#/$defs/given"}}}};
  return io::to_text(root, 2) + "\n";
}

}  // namespace trainerd::core::spec
