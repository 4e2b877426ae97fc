#include "core/spec/write.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "core/spec/compose.h"
#include "core/spec/expand.h"
#include "core/spec/fields.h"
#include "core/spec/spec.h"
#include "io/text/text.h"

namespace trainerd::core::spec {
namespace {

// Plain if every YAML reader takes it for this text, else in double quotes.
std::string text_yaml(const std::string& text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '/' || c == '_';
  };
  const auto plain = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '-'; };
  static constexpr std::array<const char*, 9> kWords = {"null", "true", "false", "yes", "no",
                                                        "on",   "off",  "y",     "n"};
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const bool word = std::find(kWords.begin(), kWords.end(), lower) != kWords.end();
  if (!text.empty() && letter(text[0]) && std::all_of(text.begin(), text.end(), plain) && !word) return text;
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += std::string("\\") + c;
    } else if (byte < 0x20 || byte == 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\x%02x", byte);
      out += escape.data();
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string list_yaml(const std::vector<std::string>& texts) {
  std::string out = "[";
  for (std::size_t i = 0; i < texts.size(); ++i)
    out.append(i > 0 ? ", " : "").append(text_yaml(unexpanded(texts[i])));
  return out + "]";
}

std::string list_yaml(const std::vector<std::int64_t>& numbers) {
  std::string out = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i)
    out.append(i > 0 ? ", " : "").append(std::to_string(numbers[i]));
  return out + "]";
}

std::string list_yaml(const std::vector<double>& numbers) {
  std::string out = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i)
    out.append(i > 0 ? ", " : "").append(number_text(numbers[i]));
  return out + "]";
}

std::string value_yaml(const Field& field);

// "{path: [a.bin], weight: 0.7}", without default values.
std::string map_yaml(const std::vector<Field>& fields, const std::vector<Field>& plain) {
  std::string out;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::string value = value_yaml(fields[i]);
    if (value.empty() || (!fields[i].required && value == value_yaml(plain[i]))) continue;
    out.append(out.empty() ? "" : ", ").append(fields[i].path).append(": ").append(value);
  }
  return "{" + out + "}";
}

std::string list_yaml(const MapList& list) {
  std::string out;
  list.plain_fields([&](const std::vector<Field>& plain) {
    for (std::size_t i = 0; i < list.size(); ++i)
      out.append(i > 0 ? ", " : "").append(map_yaml(list.fields(i), plain));
  });
  return out.empty() ? out : "[" + out + "]";
}

// The value as YAML; empty if it is not written.
std::string value_yaml(const Field& field) {
  return std::visit(
      Overloaded{
          [](const std::int64_t* v) { return std::to_string(*v); },
          [](const std::uint64_t* v) { return std::to_string(*v); },
          [](const double* v) { return number_text(*v); },
          [](const bool* v) { return std::string(*v ? "true" : "false"); },
          [](const std::string* v) { return v->empty() ? std::string() : text_yaml(unexpanded(*v)); },
          [](const std::vector<std::string>* v) { return v->empty() ? std::string() : list_yaml(*v); },
          [](const std::vector<std::int64_t>* v) { return v->empty() ? std::string() : list_yaml(*v); },
          [](const std::vector<double>* v) { return v->empty() ? std::string() : list_yaml(*v); },
          [](const Choice& c) { return c.word(); },
          [](const IntegerOrAuto& i) {
            return *i.value == parallel::kAutomatic ? std::string("auto") : std::to_string(*i.value);
          },
          [](const NumberPair& p) {
            return std::string("[")
                .append(number_text(*p.first))
                .append(", ")
                .append(number_text(*p.second))
                .append("]");
          },
          [](const Duration& d) { return io::duration_text(*d.seconds); },
          [](const StepsOrDuration& s) {
            if (s.interval->automatic) return std::string("auto");
            return s.interval->seconds > 0 ? io::duration_text(s.interval->seconds)
                                           : std::to_string(s.interval->steps);
          },
          [](const RecipeName& r) { return r.recipe->name == "custom" ? std::string() : r.recipe->name; },
          [](const FixedWord&) { return std::string(); },
          [](const BaseFile&) { return std::string(); },
          [](const Subtree&) { return std::string(); },
          [](const MapList& list) { return list_yaml(list); },
      },
      field.storage);
}

std::string code(const std::string& text) { return std::string("`").append(text).append("`"); }

std::string words_markdown(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out.append(out.empty() ? "" : ", ").append(code(word));
  return out;
}

std::string limits_markdown(const Limits& l) {
  const auto bounded = [](double x) { return x > -1e300 && x < 1e300; };
  const auto plain = [](double x) {
    return x == std::floor(x) ? std::to_string(static_cast<std::int64_t>(x)) : number_text(x);
  };
  std::string out;
  if (bounded(l.low)) out += (l.above_low ? ", > " : ", >= ") + plain(l.low);
  // Very large limits only guard arithmetic and do not help a reader.
  if (bounded(l.high) && l.high <= 3) out += (l.below_high ? ", < " : ", <= ") + plain(l.high);
  return out;
}

std::string type_markdown(const Field& field) {
  const std::string limits = limits_markdown(field.limits);
  std::string out =
      std::visit(Overloaded{
                     [&](const std::int64_t*) { return "integer" + limits; },
                     [&](const std::uint64_t*) { return std::string("integer, >= 0"); },
                     [&](const double*) { return "number" + limits; },
                     [&](const bool*) { return std::string("`true`, `false`"); },
                     [&](const std::string*) { return std::string("text"); },
                     [&](const std::vector<std::string>*) { return std::string("text or list of texts"); },
                     [&](const std::vector<std::int64_t>*) { return "list of integers" + limits; },
                     [&](const std::vector<double>*) { return "list of numbers" + limits; },
                     [&](const Choice& c) { return words_markdown(c.words); },
                     [&](const IntegerOrAuto&) { return "integer" + limits + ", or `auto`"; },
                     [&](const NumberPair&) { return "two numbers" + limits; },
                     [&](const Duration&) { return std::string("duration"); },
                     [&](const StepsOrDuration& s) {
                       return "integer" + limits + (s.or_auto ? ", duration or `auto`" : ", or duration");
                     },
                     [&](const RecipeName&) { return words_markdown(recipe_names()) + " or map"; },
                     [&](const FixedWord&) { return std::string(); },
                     [&](const BaseFile&) { return std::string("text"); },
                     [&](const Subtree&) { return std::string("map"); },
                     [&](const MapList&) { return std::string("list of maps"); },
                 },
                 field.storage);
  if (!field.only.empty()) out += " (only " + field.only + " so far)";
  return out;
}

std::string default_markdown(const Field& field) {
  if (field.required) return "required";
  if (!field.fallback.empty()) return field.fallback;
  const std::string value = value_yaml(field);
  return value.empty() ? "" : code(value);
}

// The values with a name.
std::vector<std::string> words_of(const Field& field) {
  if (!field.allowed.empty()) return field.allowed;
  if (auto names = preset_names_at(field.path); !names.empty()) return names;
  if (const auto* choice = std::get_if<Choice>(&field.storage)) return choice->words;
  if (std::holds_alternative<bool*>(field.storage)) return {"true", "false"};
  if (std::holds_alternative<IntegerOrAuto>(field.storage)) return {"auto"};
  if (const auto* interval = std::get_if<StepsOrDuration>(&field.storage); interval && interval->or_auto)
    return {"auto"};
  if (std::holds_alternative<RecipeName>(field.storage)) return recipe_names();
  return {};
}

bool in_reference(const Field& field) {
  return field.settable && !std::holds_alternative<FixedWord>(field.storage);
}

std::size_t depth_of(const std::string& path) {
  return static_cast<std::size_t>(std::count(path.begin(), path.end(), '.'));
}

}  // namespace

std::string number_text(double x) {
  std::array<char, 32> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), x);
  std::string text(digits.data(), end);
  if (text.find('.') != std::string::npos || text.find_first_of("in") != std::string::npos) return text;
  const std::size_t exponent = text.find('e');
  return exponent == std::string::npos ? text + ".0" : text.insert(exponent, ".0");
}

std::string to_yaml(const job::JobSpec& job) {
  job::JobSpec copy = job;
  std::string out;
  std::string section;  // the section of the last heading
  for (const Field& field : fields_of(copy)) {
    const std::string value = field.idle.empty() && field.written ? value_yaml(field) : "";
    if (value.empty()) continue;
    const std::string own = section_of(field.path);
    if (own != section) {
      // Writes headings of all levels that the last key was not in.
      for (std::size_t end = own.find('.');; end = own.find('.', end + 1)) {
        const std::string level = own.substr(0, end);
        if (!level.empty() && !(section + ".").starts_with(level + "."))
          out += std::string(2 * depth_of(level), ' ') +
                 level.substr(section_of(level).empty() ? 0 : section_of(level).size() + 1) + ":\n";
        if (end == std::string::npos) break;
      }
      section = own;
    }
    const std::string key = field.path.substr(own.empty() ? 0 : own.size() + 1);
    out += std::string(2 * depth_of(field.path), ' ') + key + ": " + value + "\n";
  }
  return out;
}

std::string model_yaml(const job::ModelOptions& model) {
  job::JobSpec job;
  job.model = model;
  const std::string whole = to_yaml(job);
  const std::size_t begin = whole.find("model:\n");
  std::size_t end = whole.find('\n', begin) + 1;
  while (end < whole.size() && whole[end] == ' ') end = whole.find('\n', end) + 1;
  return whole.substr(begin, end - begin);
}

std::string reference_markdown() {
  job::JobSpec defaults;
  std::string out;
  std::string section = "?";
  for (const Field& field : fields_of(defaults)) {
    if (!in_reference(field)) continue;
    // A key that is also a section (`precision`) starts its own table.
    const bool own_table = std::holds_alternative<RecipeName>(field.storage);
    const std::string group = own_table ? field.path : section_of(field.path);
    if (group != section) {
      out += std::string(out.empty() ? "" : "\n") + (group.empty() ? "Top level" : code(group)) +
             "\n\n| key | type | default | meaning |\n|---|---|---|---|\n";
      section = group;
    }
    const std::string key = group.empty() || own_table ? field.path : field.path.substr(group.size() + 1);
    const auto row = [&out](const std::string& name, const Field& of_row) {
      out += "| `" + name + "` | " + type_markdown(of_row) + " | " + default_markdown(of_row) + " | " +
             of_row.meaning + " |\n";
    };
    row(key, field);
    if (const auto* list = std::get_if<MapList>(&field.storage))
      list->plain_fields([&](const std::vector<Field>& fields) {
        for (const Field& of_item : fields) row(key + "[]." + of_item.path, of_item);
      });
  }
  return out;
}

std::vector<KeyText> job_keys() {
  job::JobSpec defaults;
  std::vector<KeyText> keys;
  const auto add = [&keys](const std::string& path, const Field& field) {
    keys.push_back({path, type_markdown(field), default_markdown(field), field.meaning, words_of(field)});
  };
  for (const Field& field : fields_of(defaults)) {
    if (!in_reference(field)) continue;
    add(field.path, field);
    if (const auto* list = std::get_if<MapList>(&field.storage))
      list->plain_fields([&](const std::vector<Field>& fields) {
        for (const Field& of_item : fields) add(field.path + "[]." + of_item.path, of_item);
      });
  }
  return keys;
}

}  // namespace trainerd::core::spec
