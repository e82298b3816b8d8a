#include "kubernetes/api/kube_client.h"

#include <curl/curl.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr long kConnectTimeoutMs = 5'000;
constexpr long kAnswerTimeoutMs = 10'000;
// Of a watch: the server sends bookmarks about once a minute, and ends it by itself.
constexpr long kWatchSilenceS = 300;
constexpr char kMergePatch[] = "application/merge-patch+json";
constexpr size_t kMaxAnswerBytes = size_t{64} << 20;

const char* CodeOf(long status) {
  switch (status) {
    case 401:
      return "unauthorized";
    case 403:
      return "forbidden";
    case 404:
      return "not_found";
    case 409:
      return "conflict";
    case 410:
      return "gone";
    default:
      return "api_error";
  }
}

Result<std::string> TokenOf(const KubeConfig& config) {
  if (config.token_file.empty()) return config.token;
  std::ifstream file(config.token_file);
  std::string token((std::istreambuf_iterator<char>(file)), {});
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.empty()) {
    return Fail("unauthorized", "cannot read a token from '" + config.token_file + "'");
  }
  return token;
}

void SetBlob(CURL* handle, CURLoption option, const std::string& pem) {
  if (pem.empty()) return;
  curl_blob blob = {const_cast<char*>(pem.data()), pem.size(), CURL_BLOB_COPY};
  curl_easy_setopt(handle, option, &blob);
}

}  // namespace

// Splits what arrives into lines.
struct Lines {
  const std::function<void(const json&)>* on_event = nullptr;
  std::string rest = {};

  void Add(const char* data, size_t bytes) {
    rest.append(data, bytes);
    size_t begin = 0;
    for (size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n', begin)) {
      const json event = json::parse(rest.begin() + static_cast<ptrdiff_t>(begin),
                                     rest.begin() + static_cast<ptrdiff_t>(end), nullptr, false);
      if (event.is_object()) (*on_event)(event);
      begin = end + 1;
    }
    rest.erase(0, begin);
  }
};

// One request and what comes of it, in libcurl's callbacks.
class KubeClient::Request {
 public:
  Request(const KubeConfig& config, void* handle, const char* method, const std::string& path)
      : handle_(handle), what_(std::string(method) + " " + config.server + path) {
    curl_easy_reset(handle_);
    curl_easy_setopt(handle_, CURLOPT_URL, (config.server + path).c_str());
    curl_easy_setopt(handle_, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(handle_, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(handle_, CURLOPT_CONNECTTIMEOUT_MS, kConnectTimeoutMs);
    curl_easy_setopt(handle_, CURLOPT_PROTOCOLS_STR, "https,http");
    curl_easy_setopt(handle_, CURLOPT_WRITEFUNCTION, &Request::OnData);
    curl_easy_setopt(handle_, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(handle_, CURLOPT_ERRORBUFFER, error_);
    if (config.insecure_skip_verify) {
      curl_easy_setopt(handle_, CURLOPT_SSL_VERIFYPEER, 0L);
      curl_easy_setopt(handle_, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    SetBlob(handle_, CURLOPT_CAINFO_BLOB, config.ca_pem);
    SetBlob(handle_, CURLOPT_SSLCERT_BLOB, config.certificate_pem);
    SetBlob(handle_, CURLOPT_SSLKEY_BLOB, config.key_pem);
    AddHeader("Accept: application/json");
    AddHeader("Expect:");  // no waiting for leave to send a body
  }
  ~Request() { curl_slist_free_all(headers_); }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  void AddHeader(const std::string& line) { headers_ = curl_slist_append(headers_, line.c_str()); }
  void SetBody(std::string body, const std::string& type) {
    body_ = std::move(body);
    AddHeader("Content-Type: " + type);
    curl_easy_setopt(handle_, CURLOPT_POSTFIELDS, body_.c_str());
    curl_easy_setopt(handle_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body_.size()));
  }
  void SetTimeout(long ms) { curl_easy_setopt(handle_, CURLOPT_TIMEOUT_MS, ms); }
  void Stream(const std::function<void(const json&)>& on_event, const std::atomic<bool>& stop) {
    lines_ = Lines{.on_event = &on_event};
    stop_ = &stop;
    curl_easy_setopt(handle_, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(handle_, CURLOPT_LOW_SPEED_TIME, kWatchSilenceS);
    curl_easy_setopt(handle_, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(handle_, CURLOPT_XFERINFODATA, this);
    curl_easy_setopt(handle_, CURLOPT_XFERINFOFUNCTION, &Request::OnProgress);
  }

  // The body of an answer that is none of an error.
  Result<std::string> Perform() {
    curl_easy_setopt(handle_, CURLOPT_HTTPHEADER, headers_);
    const CURLcode code = curl_easy_perform(handle_);
    if (stop_ != nullptr && *stop_) return std::string();
    if (code != CURLE_OK) {
      return Fail("api_unreachable",
                  what_ + ": " + (error_[0] != '\0' ? error_ : curl_easy_strerror(code)));
    }
    const long status = Status();
    if (status >= 200 && status < 300) return std::move(answer_);
    const json said = json::parse(answer_, nullptr, false);
    const std::string message =
        said.is_object() ? said.value("message", answer_) : answer_.substr(0, 300);
    return Fail(CodeOf(status), what_ + ": " + std::to_string(status) + " " + message);
  }

 private:
  long Status() const {
    long status = 0;
    curl_easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
    return status;
  }

  static size_t OnData(char* data, size_t size, size_t count, void* self) {
    auto& request = *static_cast<Request*>(self);
    const size_t bytes = size * count;
    if (request.lines_ && request.Status() == 200) {
      request.lines_->Add(data, bytes);
      return bytes;
    }
    if (request.answer_.size() + bytes > kMaxAnswerBytes) return 0;
    request.answer_.append(data, bytes);
    return bytes;
  }
  static int OnProgress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return *static_cast<Request*>(self)->stop_ ? 1 : 0;
  }

  CURL* handle_;
  const std::string what_;
  curl_slist* headers_ = nullptr;
  std::string body_;
  std::string answer_;
  std::optional<Lines> lines_;
  const std::atomic<bool>* stop_ = nullptr;
  char error_[CURL_ERROR_SIZE] = "";
};

KubeClient::KubeClient(KubeConfig config) : config_(std::move(config)) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

KubeClient::~KubeClient() {
  for (void* handle : idle_) curl_easy_cleanup(handle);
}

void* KubeClient::TakeHandle() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return curl_easy_init();
  void* handle = idle_.back();
  idle_.pop_back();
  return handle;
}

void KubeClient::GiveHandle(void* handle) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(handle);
}

Result<json> KubeClient::Get(const std::string& path) { return Call("GET", path, nullptr); }
Result<json> KubeClient::Post(const std::string& path, const json& body) {
  return Call("POST", path, &body);
}
Result<json> KubeClient::Put(const std::string& path, const json& body) {
  return Call("PUT", path, &body);
}
Result<json> KubeClient::Patch(const std::string& path, const json& body) {
  return Call("PATCH", path, &body);
}

Result<json> KubeClient::Call(const char* method, const std::string& path, const json* body) {
  const auto token = TokenOf(config_);
  if (!token) return std::unexpected(token.error());
  void* handle = TakeHandle();
  Result<std::string> answer;
  {
    Request request(config_, handle, method, path);
    if (!token->empty()) request.AddHeader("Authorization: Bearer " + *token);
    if (body != nullptr) {
      const bool patch = std::string_view(method) == "PATCH";
      request.SetBody(body->dump(), patch ? kMergePatch : "application/json");
    }
    request.SetTimeout(kAnswerTimeoutMs);
    answer = request.Perform();
  }
  GiveHandle(handle);
  if (!answer) return std::unexpected(answer.error());
  json object = json::parse(*answer, nullptr, false);
  if (!object.is_object()) {
    return Fail("api_error", std::string(method) + " " + config_.server + path +
                                 ": the answer is no JSON object");
  }
  return object;
}

Status KubeClient::Watch(const std::string& path, const std::function<void(const json&)>& on_event,
                         const std::atomic<bool>& stop) {
  const auto token = TokenOf(config_);
  if (!token) return std::unexpected(token.error());
  void* handle = TakeHandle();
  Result<std::string> ended;
  {
    Request request(config_, handle, "GET", path);
    if (!token->empty()) request.AddHeader("Authorization: Bearer " + *token);
    request.Stream(on_event, stop);
    ended = request.Perform();
  }
  GiveHandle(handle);
  if (!ended) return std::unexpected(ended.error());
  return {};
}

}  // namespace prorata::kubernetes
