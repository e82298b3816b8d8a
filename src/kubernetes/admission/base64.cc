#include "kubernetes/admission/base64.h"

#include <openssl/evp.h>

namespace prorata::kubernetes {

std::string EncodeBase64(const std::string& bytes) {
  std::string encoded(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // with EVP_EncodeBlock's NUL
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  encoded.resize(static_cast<size_t>(size));
  return encoded;
}

}  // namespace prorata::kubernetes
