#include "io/text/json_field.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "io/text/json.h"
#include "io/text/utf8.h"

namespace trainerd::io {
namespace {

constexpr const char* kChat =
    "chat messages need the template of a model: name it by --chat, or write the conversations' text to a "
    "field first (transformers: tokenizer.apply_chat_template(messages, tokenize=False)) and name it by "
    "--field";

// Keeps one text of the outermost object and skips everything else, so that other values cost little.
class FieldReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit FieldReader(const std::string& field) : field_(field) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("true or false"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool binary(binary_t&) override { return value("binary"); }
  bool string(string_t& text) override {
    if (depth_ == 1 && here_) {
      if (text_) throw JsonError("the key \"" + field_ + "\" is given twice");
      text_ = std::move(text);
      return true;
    }
    return value("a text");
  }
  bool start_object(std::size_t) override { return open("an object"); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open("a list"); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    here_ = name == field_;
    if (!here_ && keys_.size() < 8) keys_.push_back(name);
    chat_ |= name == "messages" || name == "conversations";
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // The message is "[json.exception...] parse error at line 1, column 9: ..."; its line is not the file's
    // line.
    std::string text = error.what();
    text.resize(std::min(text.size(), invalid_utf8(text)));  // it contains the last bytes read
    std::size_t begin = text.find("column ");
    if (begin == std::string::npos) begin = text.find("] ") == std::string::npos ? 0 : text.find("] ") + 2;
    throw JsonError("not valid JSON: " + text.substr(begin));
  }

  std::string take() {
    if (text_) return std::move(*text_);
    std::string there;
    for (const std::string& name : keys_) there += (there.empty() ? "" : ", ") + name;
    throw JsonError("no field \"" + field_ +
                    "\" in this object (it has: " + (there.empty() ? "nothing" : there) + "); " +
                    (chat_ ? kChat : "name the field of the text by --field"));
  }

 private:
  bool value(const char* what) {
    if (depth_ == 0) throw JsonError(std::string("the line is ") + what + ", not an object");
    if (depth_ == 1 && here_) refuse(what);
    return true;
  }
  bool open(const char* what) {
    if (depth_ == 0 && std::string_view(what) != "an object")
      throw JsonError(std::string("the line is ") + what + ", not an object");
    if (depth_ == 1 && here_) refuse(what);
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    const bool messages = what == "a list";
    throw JsonError("the field \"" + field_ + "\" is " + what + ", not a text" +
                    (messages ? std::string("; ") + kChat : ""));
  }

  const std::string& field_;
  int depth_ = 0;
  bool here_ = false;  // the outermost object's latest key is the field
  bool chat_ = false;
  std::optional<std::string> text_;
  std::vector<std::string> keys_;  // the first keys, for the error message
};

}  // namespace

std::string json_field(std::string_view line, const std::string& field) {
  FieldReader reader(field);
  nlohmann::json::sax_parse(line.begin(), line.end(), &reader);
  return reader.take();
}

}  // namespace trainerd::io
