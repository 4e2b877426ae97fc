#include "io/metrics/report/document.h"

#include <fmt/format.h>

#include "io/metrics/report/chart.h"
#include "io/metrics/report/script.h"
#include "io/metrics/report/style.h"

namespace trainerd::io {
namespace {

// Escapes JSON so that no text in it can close the enclosing element.
std::string escape_data(const std::string& json) {
  std::string out;
  for (const char c : json) out += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return out;
}

}  // namespace

std::string to_html(const HtmlDocument& d) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n" +
      d.head +
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'";
  out += d.script.empty() ? "\">\n" : "; script-src 'unsafe-inline'\">\n";
  out +=
      fmt::format("<title>{} &middot; trainerd</title>\n<style>{}</style></head>\n<body><main>\n{}</main>\n",
                  escape_html(d.title), page_style(), d.body);
  if (!d.data.empty())
    out += "<script type=\"application/json\" id=\"data\">" + escape_data(d.data) + "</script>\n";
  if (!d.script.empty()) out += "<script>" + page_script() + d.script + "</script>\n";
  return out + "</body></html>\n";
}

std::string card_html(const std::string& value, const std::string& name) {
  return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>\n", escape_html(value),
                     escape_html(name));
}

}  // namespace trainerd::io
