#include "kubernetes/kai/kai_part.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace prorata::kubernetes {
namespace {

constexpr char kKaiPodUid[] = "a451afc9-b27b-44fb-8f40-5c786695a2c9";

RuntimePod KaiPod(std::map<std::string, std::string> annotations) {
  return {"sandbox", kKaiPodUid, "team", "train", std::move(annotations), true};
}

// As KAI's binder leaves it; the image's variables are among them.
RuntimeContainer KaiContainer(const std::string& portion, const std::string& visible = "GPU-a") {
  return {.id = "c",
          .pod_id = "sandbox",
          .name = "main",
          .environment = {"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=" + visible,
                          "RUNAI_NUM_OF_GPUS=" + portion, "GPU_PORTION=" + portion},
          .cdi_devices = {},
          .mount_targets = {"/proc"}};
}

api::DeviceStatus Device(const std::string& uuid, uint64_t gib) {
  api::DeviceStatus device;
  device.uuid = uuid;
  device.total_bytes = gib * kGiB;
  return device;
}

KaiPart Read(const RuntimePod& pod, const RuntimeContainer& container) {
  const auto part = KaiPartOf(pod, container);
  EXPECT_TRUE(part) << part.error().message;
  EXPECT_TRUE(part && part->has_value());
  return part && *part ? **part : KaiPart();
}

std::string ErrorOf(const RuntimePod& pod, const RuntimeContainer& container) {
  const auto part = KaiPartOf(pod, container);
  return part ? "" : part.error().code + ": " + part.error().message;
}

api::ShareSpec Share(const KaiPart& part, const std::vector<api::DeviceStatus>& devices) {
  const auto spec = KaiShare(part, KaiPod({}), "main", devices);
  EXPECT_TRUE(spec) << spec.error().message;
  return spec.value_or(api::ShareSpec());
}

TEST(KaiPartTest, AFractionIsOfMemoryAndTime) {
  const KaiPart part = Read(KaiPod({{"gpu-fraction", "0.25"}}), KaiContainer("0.25"));
  EXPECT_EQ(part.gpus, std::vector<std::string>{"GPU-a"});
  const api::ShareSpec spec = Share(part, {Device("GPU-b", 80), Device("GPU-a", 16)});
  EXPECT_EQ(*spec.name, std::string("kai-") + kKaiPodUid);
  EXPECT_EQ(*spec.token, std::string("kubernetes-kai-") + kKaiPodUid + "/main");
  EXPECT_EQ(spec.gpus, std::vector<std::string>{"GPU-a"});
  EXPECT_EQ(spec.memory->bytes, 4 * kGiB);
  EXPECT_EQ(spec.memory_request->bytes, 4 * kGiB);
  EXPECT_EQ(spec.compute_request.ppm, 250'000u);
  EXPECT_EQ(spec.compute_limit, Fraction::One()) << "what others leave may be used";
}

TEST(KaiPartTest, MemoryIsMibAndTheSamePartOfTheTime) {
  const KaiPart part = Read(KaiPod({{"gpu-memory", "4096"}}), KaiContainer("0.26"));
  const api::ShareSpec spec = Share(part, {Device("GPU-a", 16)});
  EXPECT_EQ(spec.memory->bytes, 4 * kGiB);
  EXPECT_EQ(spec.compute_request.ppm, 250'000u) << "KAI's hundredths may add up to more than a GPU";
}

TEST(KaiPartTest, FractionsAsGoReadsThem) {
  for (const auto& [text, ppm] : std::map<std::string, uint32_t>{
           {"0.29", 290'000}, {".5", 500'000}, {"5e-1", 500'000}, {"0.3333333333", 333'333}}) {
    const KaiPart part = Read(KaiPod({{"gpu-fraction", text}}), KaiContainer(text));
    EXPECT_EQ(part.fraction->ppm, ppm) << text;
  }
  EXPECT_EQ(Read(KaiPod({{"gpu-fraction", "0.004"}}), KaiContainer("0.00")).fraction->ppm, 4'000u);
}

TEST(KaiPartTest, PartsThatAreNone) {
  for (const char* text : {"0", "0.0", "-0.5", "1", "1.0", "1.5", "2", "half", "0.5x", " 0.5",
                           "nan", "inf", "50%", "500m", "1e-9", "0,5"}) {
    EXPECT_EQ(ErrorOf(KaiPod({{"gpu-fraction", text}}), KaiContainer("0.50")),
              std::string("bad_annotation: the annotation gpu-fraction of pod team/train is '") +
                  text + "': it must be a number above 0 and below 1, for example \"0.5\"");
  }
  for (const char* text :
       {"0", "-1", "4Gi", "4.5", "x", "99999999999999999999", "18446744073709551615"}) {
    EXPECT_EQ(ErrorOf(KaiPod({{"gpu-memory", text}}), KaiContainer("0.50")),
              std::string("bad_annotation: the annotation gpu-memory of pod team/train is '") +
                  text + "': it must be a whole number of MiB above 0, for example \"4096\"");
  }
  EXPECT_NE(ErrorOf(KaiPod({{"gpu-fraction", "0.5"}, {"gpu-memory", "1"}}), KaiContainer("0.5"))
                .find("the pod has gpu-memory as well"),
            std::string::npos);
  for (const char* portion : {"", "x", "-1", "1.01", "nan"}) {
    EXPECT_NE(
        ErrorOf(KaiPod({{"gpu-fraction", "0.5"}}), KaiContainer(portion)).find("has GPU_PORTION='"),
        std::string::npos)
        << portion;
  }
  const std::string longer(1'000, '1');
  EXPECT_LT(ErrorOf(KaiPod({{"gpu-fraction", longer}}), KaiContainer("0.5")).size(), 300u);
}

// Whoever may change a pod's annotations may do so after KAI bound it.
TEST(KaiPartTest, NoMoreThanKaiAccounts) {
  EXPECT_NE(ErrorOf(KaiPod({{"gpu-fraction", "0.9"}}), KaiContainer("0.50"))
                .find("is '0.9': KAI bound the pod with 0.50 of a GPU"),
            std::string::npos);
  EXPECT_EQ(ErrorOf(KaiPod({{"gpu-fraction", "0.504"}}), KaiContainer("0.50")), "");
  const KaiPart part = Read(KaiPod({{"gpu-memory", "12288"}}), KaiContainer("0.25"));
  const auto spec = KaiShare(part, KaiPod({}), "main", {Device("GPU-a", 16)});
  ASSERT_FALSE(spec);
  EXPECT_NE(spec.error().message.find("KAI bound the pod with 0.25 of a GPU"), std::string::npos);
}

TEST(KaiPartTest, ContainersThatHaveNothingByKai) {
  const auto nothing = [](const RuntimePod& pod, const RuntimeContainer& container) {
    const auto part = KaiPartOf(pod, container);
    return part && !part->has_value();
  };
  const RuntimePod pod = KaiPod({{"gpu-fraction", "0.5"}});
  EXPECT_TRUE(nothing(KaiPod({}), KaiContainer("0.5"))) << "not KAI's annotations";
  EXPECT_TRUE(nothing(KaiPod({{"gpu-fraction", ""}}), KaiContainer("0.5")));
  RuntimeContainer side = KaiContainer("0.5");
  side.environment = {"NVIDIA_VISIBLE_DEVICES=all", "GPU_PORTION_OF=1"};
  EXPECT_TRUE(nothing(pod, side)) << "another container of the pod, with a CUDA image";
  const RuntimePod named =
      KaiPod({{"gpu-fraction", "0.5"}, {"gpu-fraction-container-name", "other"}});
  EXPECT_TRUE(nothing(named, KaiContainer("0.5")));
  for (const bool by_mount : {true, false}) {
    RuntimeContainer own = KaiContainer("0.5");
    if (by_mount) own.mount_targets.push_back("/run/prorata/share");
    if (!by_mount) own.cdi_devices.push_back("prorata.dev/share=claim-x");
    EXPECT_TRUE(HasShare(own));
    EXPECT_TRUE(nothing(pod, own)) << "it has a share of prorata's";
  }
  EXPECT_FALSE(nothing(pod, KaiContainer("0.5")));
}

TEST(KaiPartTest, GpusByUuidOrAsDevicesOfNvidias) {
  const RuntimePod two = KaiPod({{"gpu-fraction", "0.5"}, {"gpu-fraction-num-devices", "2"}});
  const std::vector<std::string> both = {"GPU-a", "GPU-b"};
  EXPECT_EQ(Read(two, KaiContainer("0.5", "GPU-a,GPU-b")).gpus, both);
  EXPECT_EQ(Read(two, KaiContainer("0.5",
                                   "k8s.device-plugin.nvidia.com/gpu=GPU-a,"
                                   "k8s.device-plugin.nvidia.com/gpu=GPU-b"))
                .gpus,
            both);
  const KaiPart part = Read(two, KaiContainer("0.5", "GPU-a,GPU-b"));
  EXPECT_EQ(Share(part, {Device("GPU-a", 16), Device("GPU-b", 8)}).memory->bytes, 4 * kGiB)
      << "a limit for both: of the smaller";
}

TEST(KaiPartTest, GpusThatAreNotNamed) {
  const RuntimePod pod = KaiPod({{"gpu-fraction", "0.5"}});
  for (const char* visible : {"", "all", "void", "0", "GPU-a,", "GPU-a,1", "MIG-x", "none"}) {
    EXPECT_NE(ErrorOf(pod, KaiContainer("0.5", visible)).find("does not name GPUs by their UUIDs"),
              std::string::npos)
        << visible;
  }
  EXPECT_NE(ErrorOf(pod, KaiContainer("0.5", "GPU-a,GPU-b")).find("gave container 'main' 2 GPU(s)"),
            std::string::npos);
  for (const char* count : {"0", "x", "2", "-1"}) {
    EXPECT_NE(ErrorOf(KaiPod({{"gpu-fraction", "0.5"}, {"gpu-fraction-num-devices", count}}),
                      KaiContainer("0.5"))
                  .find("the annotation gpu-fraction-num-devices"),
              std::string::npos);
  }
  EXPECT_NE(
      ErrorOf(KaiPod({{"gpu-fraction", "0.5"},
                      {"nvidia.cdi.k8s.io/container.main", "management.nvidia.com/gpu=GPU-a"}}),
              KaiContainer("0.5"))
          .find("gets its GPU from NVIDIA's NRI plugin"),
      std::string::npos);
  const KaiPart part = Read(pod, KaiContainer("0.5"));
  EXPECT_EQ(KaiShare(part, KaiPod({}), "main", {Device("GPU-b", 16)}).error().code,
            "no_such_device");
}

// Parts add up to all of a GPU, and a driver takes some of it for itself.
TEST(KaiPartTest, AllPartsOfAGpuFit) {
  const KaiPart half = Read(KaiPod({{"gpu-fraction", "0.5"}}), KaiContainer("0.50"));
  api::DeviceStatus device = Device("GPU-a", 80);
  device.foreign_bytes = 600 * kMiB;
  const uint64_t first = Share(half, {device}).memory->bytes;
  EXPECT_EQ(first, (80 * kGiB - 600 * kMiB) / 2);
  device.promised_bytes = first;
  device.foreign_bytes += 30 * kMiB;
  const uint64_t second = Share(half, {device}).memory->bytes;
  EXPECT_EQ(first + second + device.foreign_bytes, device.total_bytes);
  // One that must wait for another's end is not made smaller instead.
  device.promised_bytes = 60 * kGiB;
  EXPECT_GT(Share(half, {device}).memory->bytes, 39 * kGiB);
  device.promised_bytes = device.total_bytes;
  EXPECT_GT(Share(half, {device}).memory->bytes, 39 * kGiB);
}

TEST(KaiPartTest, NamesOfShares) {
  EXPECT_EQ(KaiPodOfShare(ShareNameOfKaiPod(kKaiPodUid)), kKaiPodUid);
  for (const char* name : {"kai-train", "kai-", "claim-a451afc9-b27b-44fb-8f40-5c786695a2c9",
                           "kai-a451afc9-b27b-44fb-8f40-5c786695a2cX"}) {
    EXPECT_FALSE(KaiPodOfShare(name)) << name;
  }
  RuntimePod pod = KaiPod({});
  pod.uid = "../x";
  EXPECT_EQ(
      KaiShare(KaiPart{{"GPU-a"}, Fraction{500'000}, 0, {}}, pod, "main", {Device("GPU-a", 16)})
          .error()
          .code,
      "bad_pod");
}

}  // namespace
}  // namespace prorata::kubernetes
