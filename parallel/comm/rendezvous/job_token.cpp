#include "parallel/comm/rendezvous/job_token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>

#include "kernels/base/error.h"

namespace trainerd::parallel {

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) != 1)
    throw base::device_error("the system gives no random numbers");
  return bytes;
}

bool same_bytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

JobToken JobToken::random() {
  std::string text;
  for (const char byte : random_bytes(32)) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return JobToken(std::move(text));
}

JobToken::JobToken(std::string text, const std::string& from) : text_(std::move(text)) {
  if (text_.size() < kShortest)
    throw base::spec_error(from + " holds a token of " + std::to_string(text_.size()) +
                           " characters, and one of the job has at least " + std::to_string(kShortest));
}

std::string JobToken::proof(Side side, std::string_view client_nonce, std::string_view server_nonce) const {
  std::string message = side == Side::client ? "trainerd client " : "trainerd server ";
  message.append(client_nonce).append(server_nonce);
  std::array<unsigned char, kProofBytes> code{};
  unsigned int bytes = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), text_.data(), static_cast<int>(text_.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(), code.data(), &bytes);
  base::check(made != nullptr && bytes == kProofBytes, "SHA-256 gives 32 bytes");
  return {code.begin(), code.end()};
}

}  // namespace trainerd::parallel
