#include "cli/top/top_screen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/bytes.h"
#include "cli/top/top_bars.h"

namespace prorata::cli {
namespace {

std::string TextOf(const Line& line) {
  std::string text;
  for (const Span& span : line) text += span.text;
  return text;
}

std::string TextOf(const Screen& screen) {
  std::string text;
  for (const Line& line : screen.lines) text += TextOf(line) + "\n";
  return text;
}

std::string BarText(const BarFigures& figures, size_t columns, bool utf8 = false) {
  return TextOf(Bar(figures, columns, Style::kPlain, utf8));
}

bool Shows(const Screen& screen, const std::string& text) {
  return TextOf(screen).find(text) != std::string::npos;
}

api::ShareStatus BusyShare(const std::string& name, double busy) {
  api::ShareStatus share;
  share.name = name;
  api::ShareDevice& on = share.devices.emplace_back();
  on.achieved = busy;
  on.entitled = 0.5;
  on.used_bytes = kGiB;
  on.memory_limit_bytes = on.memory_request_bytes = 4 * kGiB;
  on.compute_limit = Fraction::One();
  return share;
}

TopScene Scene(size_t shares, size_t devices = 1) {
  TopScene scene;
  scene.time = "12:03:04";
  scene.interval = "1s";
  for (size_t i = 0; i < shares; ++i) {
    scene.snapshot.shares.push_back(
        BusyShare("share" + std::to_string(i), 1 - static_cast<double>(i) / 1000));
  }
  for (size_t i = 0; i < devices; ++i) {
    api::DeviceStatus& device = scene.snapshot.devices.emplace_back();
    device.index = static_cast<uint32_t>(i);
    device.name = "Simulated GPU";
    device.busy = 0.73;
    device.used_bytes = 4 * kGiB;
    device.total_bytes = 16 * kGiB;
  }
  return scene;
}

TEST(BarTest, InAscii) {
  EXPECT_EQ(BarText({0}, 12), "[          ]");
  EXPECT_EQ(BarText({0.5}, 12), "[#####     ]");
  EXPECT_EQ(BarText({1}, 12), "[##########]");
  EXPECT_EQ(BarText({0.2, 0.5}, 12), "[##   |    ]");
  EXPECT_EQ(BarText({0.8, 0.5, 0.8}, 12), "[#####|##..]");
  EXPECT_EQ(BarText({0.2, 1}, 12), "[##       |]");
  EXPECT_EQ(BarText({0.9, -1, 0.5}, 12), "[#########.]") << "what is above its limit is shown";
}

TEST(BarTest, InEighths) {
  EXPECT_EQ(BarText({0.5}, 5, true), "[█▌ ]");
  EXPECT_EQ(BarText({1.0 / 24}, 5, true), "[▏  ]");
  EXPECT_EQ(BarText({1, 0.5, 0.5}, 5, true), "[█│█]");
  EXPECT_EQ(BarText({0, -1, 0.3}, 5, true), "[ ░░]");
}

TEST(BarTest, NonsenseAndNarrowness) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(BarText({nan, nan, nan}, 6), BarText({nan, nan, nan}, 6));
  EXPECT_EQ(BarText({1e300, 1e300, -3}, 6), "[###|]");
  for (const size_t columns : {3, 4, 17, 200}) {
    for (const bool utf8 : {false, true}) {
      EXPECT_EQ(ColumnsOf(Bar({0.37, nan, 0.7}, columns, Style::kPlain, utf8)), columns);
    }
  }
}

TEST(TextTest, FitsAndIsClean) {
  EXPECT_EQ(Fit("abc", 5, true), "abc  ");
  EXPECT_EQ(Fit("abc", 5, false), "abc");
  EXPECT_EQ(Fit("abcdef", 4, true), "abc~");
  EXPECT_EQ(Fit("abc", 0, true), "");
  EXPECT_EQ(FitRight("12%", 5), "  12%");
  EXPECT_EQ(Printable("a\x1b[31mb\n\u00e9\x7f"), "a?[31mb???");
}

// Whatever is shown, in whatever window: nothing is wider or higher than it.
TEST(LayOutTest, FitsEveryWindow) {
  std::vector<TopScene> scenes = {Scene(0, 0), Scene(1), Scene(60, 16)};
  scenes.push_back(Scene(3, 2));
  scenes.back().snapshot.shares[0].name = std::string(63, 'n');
  scenes.back().snapshot.shares[0].ended = true;
  scenes.back().snapshot.shares[1].devices[0].throttle_reasons = {
      ThrottleReason::kWaitsForMemory, ThrottleReason::kAtLimit, ThrottleReason::kOverMemoryLimit};
  scenes.back().snapshot.shares[1].devices[0].used_bytes = ~uint64_t{0};
  scenes.back().snapshot.shares[2].devices[0].achieved = 1e308;
  scenes.back().trouble = "no agent runs at '/run/a/long/path/" + std::string(90, 'x') + "' at all";
  scenes.push_back(Scene(1));
  scenes.back().view.help = true;
  scenes.push_back({});
  scenes.back().trouble = "no agent";
  for (TopScene& scene : scenes) {
    for (const bool utf8 : {false, true}) {
      scene.utf8 = utf8;
      for (int height = 1; height <= 40; height += height < 14 ? 1 : 5) {
        for (int width = 1; width <= 200; width += width < 40 ? 1 : 7) {
          const Screen screen = LayOut(scene, width, height);
          ASSERT_FALSE(screen.lines.empty());
          ASSERT_LE(screen.lines.size(), static_cast<size_t>(height)) << width;
          ASSERT_LE(screen.page, screen.rows);
          for (const Line& line : screen.lines) {
            ASSERT_LE(ColumnsOf(line), static_cast<size_t>(width)) << height << TextOf(line);
          }
        }
      }
    }
  }
  EXPECT_TRUE(LayOut(scenes[1], 0, 10).lines.empty());
  EXPECT_TRUE(LayOut(scenes[1], 10, -1).lines.empty());
}

TEST(LayOutTest, AWideWindowShowsEverything) {
  TopScene scene = Scene(2);
  scene.snapshot.shares[1].devices[0].throttle_reasons = {ThrottleReason::kWaitsForOthers};
  scene.snapshot.shares[1].devices[0].waiting_part = 0.4;
  const Screen screen = LayOut(scene, 180, 14);
  const std::string text = TextOf(screen);
  EXPECT_EQ(screen.lines.size(), 14u);
  EXPECT_TRUE(text.starts_with("prorata top  2 shares, 1 GPU  ")) << text;
  for (const char* shown :
       {"by time, every 1s  12:03:04\n", "GPU 0 [", " 73.0%  memory [", "4 GiB / 16 GiB",
        "Simulated GPU", "NAME", "GPU TIME", "ENTITLED", "LIMIT", "MEMORY", "WAITED", "MEMBERS",
        "WHY", "share0", "100.0%", "1 GiB / 4 GiB", "40.0%", "waits for other shares 40%",
        "\nq quit  s sort"}) {
    EXPECT_NE(text.find(shown), std::string::npos) << shown << " is not in\n" << text;
  }
}

// What a narrow window leaves out, the least important first.
TEST(LayOutTest, ANarrowWindowShowsWhatMattersMost) {
  TopScene scene = Scene(1);
  scene.snapshot.shares[0].devices[0].throttle_reasons = {ThrottleReason::kOverMemoryLimit};
  const Screen usual = LayOut(scene, 80, 24);
  for (const char* shown : {"share0", "[#", "100.0%", "over its memory limit", "1 GiB / 4 GiB"}) {
    EXPECT_TRUE(Shows(usual, shown)) << shown << " is not in\n" << TextOf(usual);
  }
  EXPECT_FALSE(Shows(usual, "MEMBERS"));
  const Screen narrow = LayOut(scene, 40, 24);
  EXPECT_TRUE(Shows(narrow, "share0  100.0%  over its memory limit")) << TextOf(narrow);
  EXPECT_FALSE(Shows(narrow, "ENTITLED"));
  // Also with long names and a long reason: it is cut, and nothing takes its place.
  scene.snapshot.shares[0].name = "a-long-name-of-a-share";
  scene.snapshot.shares[0].devices[0].throttle_reasons = {ThrottleReason::kNonPreemptible};
  for (const size_t gpus : {1, 2}) {
    scene.snapshot.devices.resize(gpus);
    const Screen forty = LayOut(scene, 40, 24);
    EXPECT_TRUE(Shows(forty, "WHY")) << TextOf(forty);
    EXPECT_TRUE(Shows(forty, "cannot be ")) << TextOf(forty);
    EXPECT_FALSE(Shows(forty, "LIMIT")) << TextOf(forty);
  }
  const Screen slit = LayOut(scene, 4, 24);
  EXPECT_TRUE(Shows(slit, "a-l~")) << TextOf(slit);
}

TEST(LayOutTest, WhoWantsNothingIsEntitledToNothing) {
  TopScene scene = Scene(1);
  EXPECT_TRUE(Shows(LayOut(scene, 120, 24), "50.0%"));
  scene.snapshot.shares[0].devices[0].active = false;
  EXPECT_FALSE(Shows(LayOut(scene, 120, 24), "50.0%"));
}

TEST(LayOutTest, WithSeveralGpusTheRowSaysWhich) {
  const Screen several = LayOut(Scene(1, 2), 36, 24);
  EXPECT_TRUE(Shows(several, "\nNAME    GPU    TIME")) << TextOf(several);
  EXPECT_TRUE(Shows(several, "share0    0  100.0%")) << TextOf(several);
  EXPECT_FALSE(Shows(LayOut(Scene(1, 1), 36, 24), "\nNAME    GPU    TIME"));
}

TEST(LayOutTest, ScrollsAndSaysWhere) {
  TopScene scene = Scene(30);
  const Screen first = LayOut(scene, 100, 16);
  EXPECT_EQ(first.rows, 30u);
  EXPECT_EQ(first.page, 11u);
  EXPECT_TRUE(Shows(first, "share10 "));
  EXPECT_FALSE(Shows(first, "share11 "));
  EXPECT_TRUE(TextOf(first).ends_with("1-11 of 30\n")) << TextOf(first);
  scene.view.scroll = 5;
  EXPECT_TRUE(TextOf(LayOut(scene, 100, 16)).ends_with("6-16 of 30\n"));
  scene.view.scroll = 1000;  // shares went away, or the window grew
  const Screen last = LayOut(scene, 100, 16);
  EXPECT_EQ(last.scroll, 19u);
  EXPECT_TRUE(Shows(last, "share29 "));
  EXPECT_EQ(LayOut(scene, 100, 60).scroll, 0u);
  EXPECT_FALSE(Shows(LayOut(scene, 100, 60), " of 30"));
}

TEST(LayOutTest, ManyGpusLeaveRoomForShares) {
  const Screen screen = LayOut(Scene(20, 16), 100, 24);
  EXPECT_TRUE(Shows(screen, "GPU 5 ")) << TextOf(screen);
  EXPECT_FALSE(Shows(screen, "GPU 6 "));
  EXPECT_TRUE(Shows(screen, "and 10 more GPUs"));
  EXPECT_GE(screen.page, 10u);
  EXPECT_TRUE(Shows(LayOut(Scene(20, 16), 100, 60), "GPU 15 "));
}

TEST(LayOutTest, AnAgentThatIsAwayIsSaid) {
  TopScene scene = Scene(2);
  scene.trouble = "no agent runs at '/run/prorata/control' (since 3 s)";
  const Screen screen = LayOut(scene, 30, 24);
  EXPECT_EQ(TextOf(screen.lines[1]), "no agent runs at") << TextOf(screen);
  EXPECT_EQ(TextOf(screen.lines[2]), "'/run/prorata/control' (since");
  EXPECT_EQ(screen.lines[1][0].style, Style::kBad);
  EXPECT_TRUE(Shows(screen, "share1"));
  EXPECT_EQ(TextOf(LayOut(scene, 80, 1)), scene.trouble + "\n");
  scene.snapshot = {};
  scene.time = "";  // never seen one
  const Screen never = LayOut(scene, 80, 24);
  EXPECT_TRUE(Shows(never, scene.trouble));
  EXPECT_FALSE(Shows(never, "NAME"));
  EXPECT_FALSE(Shows(never, "0 shares"));
}

TEST(LayOutTest, TheColumnSortedByIsMarked) {
  TopScene scene = Scene(1);
  for (const auto& [sort, title] :
       {std::pair{TopSort::kTime, "  TIME"}, std::pair{TopSort::kName, "NAME  "},
        std::pair{TopSort::kMemory, "MEMORY       "}}) {
    scene.view.sort = sort;
    const Screen screen = LayOut(scene, 120, 24);
    std::string marked;
    for (const Line& line : screen.lines) {
      for (const Span& span : line) {
        if (span.style == Style::kSorted) marked += span.text;
      }
    }
    EXPECT_EQ(marked, title);
  }
}

TEST(LayOutTest, Help) {
  TopScene scene = Scene(1);
  scene.view.help = true;
  const Screen screen = LayOut(scene, 100, 40);
  for (const char* shown : {"quit", "sort by", "waits for other shares", "cannot be preempted"}) {
    EXPECT_TRUE(Shows(screen, shown)) << shown;
  }
}

}  // namespace
}  // namespace prorata::cli
