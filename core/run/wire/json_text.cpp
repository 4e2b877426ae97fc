#include "core/run/wire/json_text.h"

namespace trainerd::core::run {

std::string to_message(const nlohmann::json& body) {
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void unknown_message(const std::string& type) {
  throw base::comm_error("a message of unknown type '" + type + "' came from another process of the job");
}

void unreadable_message(const char* why) {
  throw base::comm_error(std::string("a message from another process of the job cannot be read: ") + why);
}

}  // namespace trainerd::core::run
