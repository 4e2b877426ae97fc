#pragma once

#include <string>

namespace trainerd::io {

struct HtmlDocument {
  std::string title;        ///< text
  std::string head = {};    ///< HTML, before the style sheet
  std::string body = {};    ///< HTML
  std::string data = {};    ///< JSON, for the script: the text of the element "data"; empty: none
  std::string script = {};  ///< behind page_script(); empty: the page has no script at all
};

/// One page that fetches nothing, in the style of page_style(): all is in it, and a policy in its head
/// forbids the browser to load anything else.
std::string to_html(const HtmlDocument& document);

/// A figure under its name, for `<div class="cards">`. Both are text.
std::string card_html(const std::string& value, const std::string& name);

}  // namespace trainerd::io
