#include "core/run/wire/json_text.h"

#include "io/text/json.h"

namespace trainerd::core::run {

std::string to_message(const nlohmann::json& body) { return io::text_of(body); }

nlohmann::json parse_message(const std::string& text) { return nlohmann::json::parse(text); }

void unknown_message(const std::string& type) {
  throw base::comm_error("a message of unknown type '" + type + "' came from another process of the job");
}

void unreadable_message(const char* why) {
  throw base::comm_error(std::string("a message from another process of the job cannot be read: ") + why);
}

}  // namespace trainerd::core::run
