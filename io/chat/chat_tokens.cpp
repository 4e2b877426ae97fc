#include "io/chat/chat_tokens.h"

#include <span>

#include "kernels/base/error.h"

namespace trainerd::io {

std::string bos_text(ChatTemplate chat, const Tokenizer& tokenizer, const std::string& file) {
  if (tokenizer.info().kind == "bytes") return "";  // all of a template is text to it
  const std::string option = "--chat " + std::string(name_of(chat)) + ": ";
  for (const std::string& text : special_texts(chat))
    if (!tokenizer.id_of(text))
      throw base::spec_error(option + file + " has no token " + text +
                             ": it is of another model; the templates are " + chat_template_names());
  if (!begins_with_bos(chat)) return "";
  if (!tokenizer.info().bos)
    throw base::spec_error(option + file +
                           " names no token that begins a text: keep the tokenizer_config.json with its "
                           "bos_token beside the tokenizer.json");
  const std::int32_t bos = *tokenizer.info().bos;
  return tokenizer.decode(std::span(&bos, 1));
}

}  // namespace trainerd::io
