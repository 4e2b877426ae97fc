#pragma once

#include <string>

namespace trainerd::io {

struct HtmlDocument {
  std::string title;        ///< plain text
  std::string head = {};    ///< HTML, before the style sheet
  std::string body = {};    ///< HTML
  std::string data = {};    ///< JSON for the script: text of the element "data"; empty: none
  std::string script = {};  ///< placed after page_script(); empty: no script at all
};

/// Returns a self-contained page in the style of page_style(). A policy in its head forbids the browser to
/// load anything.
std::string to_html(const HtmlDocument& document);

/// Returns a figure with its name, for `<div class="cards">`. Both are plain text.
std::string card_html(const std::string& value, const std::string& name);

}  // namespace trainerd::io
