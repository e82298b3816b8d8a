#include "kubernetes/api/kube_config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace prorata::kubernetes {
namespace {

struct KubeConfigTest : testing::Test {
  std::filesystem::path folder;

  void SetUp() override {
    std::string name = testing::TempDir() + "kubeconfig-XXXXXX";
    folder = ::mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return folder / name;
  }
  // A context "a" with this cluster and user.
  Result<KubeConfig> Read(const std::string& cluster, const std::string& user) {
    return ReadKubeConfig(Write("config",
                                "current-context: a\n"
                                "contexts: [{name: a, context: {cluster: c, user: u}}]\n"
                                "clusters: [{name: c, cluster: {" +
                                    cluster +
                                    "}}]\n"
                                    "users: [{name: u, user: {" +
                                    user + "}}]\n"));
  }
};

TEST_F(KubeConfigTest, ReadsTokensAndCertificates) {
  Write("ca.pem", "authority");
  const auto config = Read("server: 'https://10.0.0.1:6443/', certificate-authority: ca.pem",
                           "token: t, client-certificate-data: Y2VydA==, client-key-data: a2V5");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->server, "https://10.0.0.1:6443");
  EXPECT_EQ(config->ca_pem, "authority");
  EXPECT_EQ(config->certificate_pem, "cert");
  EXPECT_EQ(config->key_pem, "key");
  EXPECT_EQ(config->token, "t");
  EXPECT_FALSE(config->insecure_skip_verify);
  const auto file = Read("server: s, insecure-skip-tls-verify: true", "tokenFile: token");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->token_file, folder / "token");
  EXPECT_TRUE(file->insecure_skip_verify);
}

TEST_F(KubeConfigTest, SaysWhatIsWrong) {
  const auto says = [](const Result<KubeConfig>& config, const char* what) {
    ASSERT_FALSE(config);
    EXPECT_EQ(config.error().code, "kubeconfig");
    EXPECT_NE(config.error().message.find(what), std::string::npos) << config.error().message;
  };
  says(ReadKubeConfig(folder / "none"), "No such file");
  says(ReadKubeConfig(Write("broken", "a: [")), "broken");
  says(ReadKubeConfig(Write("empty", "")), "no '' among its contexts");
  says(ReadKubeConfig(Write("list", "[1, 2]")), "list");
  says(Read("server: ''", "token: t"), "no server");
  says(Read("server: s", "exec: {command: aws}"), "exec");
  says(Read("server: s, certificate-authority: gone.pem", "token: t"), "gone.pem");
  says(Read("server: s, certificate-authority-data: '%%'", "token: t"), "no base64");
}

TEST_F(KubeConfigTest, OutsideOfAPodItSaysSo) {
  ::unsetenv("KUBERNETES_SERVICE_HOST");
  const auto config = PodKubeConfig();
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, "not_in_cluster");
}

}  // namespace
}  // namespace prorata::kubernetes
