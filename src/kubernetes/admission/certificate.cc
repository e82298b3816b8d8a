#include "kubernetes/admission/certificate.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <sstream>

namespace prorata::kubernetes {
namespace {

constexpr long kHourS = 3'600;
constexpr long kTenYearsS = 10L * 365 * 24 * kHourS;
constexpr int kVersion3 = 2;

template <auto Free>
struct FreeWith {
  template <typename Object>
  void operator()(Object* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;
using Cert = std::unique_ptr<X509, FreeWith<X509_free>>;
using Bio = std::unique_ptr<BIO, FreeWith<BIO_free_all>>;
using Extension = std::unique_ptr<X509_EXTENSION, FreeWith<X509_EXTENSION_free>>;

std::unexpected<Error> OpenSslFailed(const std::string& what) {
  char why[256] = "unknown";
  ERR_error_string_n(ERR_get_error(), why, sizeof why);
  return Fail("certificate", "cannot make a certificate: " + what + ": " + why);
}

bool IsAddress(const std::string& name) {
  in6_addr space = {};
  return ::inet_pton(AF_INET, name.c_str(), &space) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), &space) == 1;
}

std::string AlternativeNames(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) {
    list += (list.empty() ? "" : ",") + std::string(IsAddress(name) ? "IP:" : "DNS:") + name;
  }
  return list;
}

bool AddExtension(X509* certificate, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

std::string TextOfBio(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(size)};
}

bool FillIn(X509* certificate, EVP_PKEY* key, const std::vector<std::string>& names) {
  // Another serial each time: a client may hold an earlier one of the same issuer.
  uint32_t serial = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) != 1) return false;
  X509_set_version(certificate, kVersion3);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), serial + uint64_t{1});
  X509_gmtime_adj(X509_getm_notBefore(certificate), -kHourS);
  X509_gmtime_adj(X509_getm_notAfter(certificate), kTenYearsS);
  X509_set_pubkey(certificate, key);
  X509_NAME* name = X509_get_subject_name(certificate);
  const unsigned char own[] = "prorata-webhook";
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, own, -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  return AddExtension(certificate, NID_basic_constraints, "critical,CA:TRUE") &&
         AddExtension(certificate, NID_ext_key_usage, "serverAuth") &&
         AddExtension(certificate, NID_subject_alt_name, AlternativeNames(names)) &&
         X509_sign(certificate, key, EVP_sha256()) > 0;
}

Result<std::string> ReadPem(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return FailErrno("certificate", "cannot read '" + path + "'", errno);
  return text.str();
}

}  // namespace

Result<Certificate> MakeCertificate(const std::vector<std::string>& names) {
  const Key key(EVP_EC_gen("P-256"));
  const Cert certificate(X509_new());
  if (!key || !certificate) return OpenSslFailed("no key");
  if (!FillIn(certificate.get(), key.get(), names)) {
    return OpenSslFailed("for '" + AlternativeNames(names) + "'");
  }
  const Bio certificate_pem(BIO_new(BIO_s_mem()));
  const Bio key_pem(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(certificate_pem.get(), certificate.get()) != 1 ||
      PEM_write_bio_PrivateKey(key_pem.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) !=
          1) {
    return OpenSslFailed("no PEM");
  }
  return Certificate{TextOfBio(certificate_pem.get()), TextOfBio(key_pem.get())};
}

Result<Certificate> ReadCertificate(const std::string& certificate_file,
                                    const std::string& key_file) {
  auto certificate = ReadPem(certificate_file);
  if (!certificate) return std::unexpected(certificate.error());
  auto key = ReadPem(key_file);
  if (!key) return std::unexpected(key.error());
  return Certificate{std::move(*certificate), std::move(*key)};
}

}  // namespace prorata::kubernetes
