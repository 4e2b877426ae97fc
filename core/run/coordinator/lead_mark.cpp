#include "core/run/coordinator/lead_mark.h"

#include <sstream>

namespace trainerd::core::run {

std::string LeadMark::text() const { return "lead " + std::to_string(epoch) + " of run " + run; }

std::optional<LeadMark> LeadMark::parse(const std::string& text) {
  LeadMark mark;
  std::istringstream in(text);
  std::string lead, of, run;
  if (!(in >> lead >> mark.epoch >> of >> run >> mark.run) || mark.text() != text) return std::nullopt;
  return mark;
}

}  // namespace trainerd::core::run
