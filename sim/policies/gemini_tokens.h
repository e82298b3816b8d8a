#pragma once

// Gemini's way of sharing a GPU, to compare TimeSharing with: one token, given for a quota of time.
// Written from what github.com/NTHU-LSALAB/Gemini does (scheduler.cpp, schd-priority.cpp,
// predictor.cpp and hook.cpp; no code was taken), rule by rule:
//
//   A  scheduler.cpp, select_candidate: the grants of the last `window` (of the time since the
//      start, while that is shorter) are what a client used; where grants overlap, each counts for
//      its part. Who used all of its limit is no candidate. If none is left, it sleeps until the
//      oldest grant leaves the window, or somebody else asks.
//   B  schd-priority.cpp: of two that miss some of their request, the one that misses the larger
//      part of it goes first; who misses some goes before who does not; else who used less.
//   C  select_candidate: whoever asked first and has no grant in the window gets the token
//   unranked. D  updateQuota: no burst known: the base quota; else the mean of the burst and the
//   last quota,
//      at least the least quota, at most limit x window. What is left of the limit does not bound
//      it.
//   E  schedule_daemon_func: a grant lasts until its time is over or its holder asks again. A
//   holder
//      that goes idle keeps the token, and nobody else runs: the idle quanta.
//   F  update_return_time: asking again ends the last grant now, if that is earlier than its end; a
//      holder that drained late reports the time beyond its quota, and the grant gets it.
//   G  predictor.cpp: the burst is the longest of the last three seconds, where bursts less than
//      2 ms apart count as one; hook.cpp, estimate_full_burst: twice that, if all gaps between
//      bursts were below 2 ms, for then a burst may have been cut short by the token's end. (So the
//      quota of a program that is always busy grows, by half each time, up to limit x window.)
//   H  hook.cpp, cuLaunchKernel_prehook: between two bursts, when the next would not fit into what
//      is left of the quota, the next launch asks again instead.
//   I  hook.cpp, wait_cuda_kernels: at the quota's end the hook lets the device drain, and only the
//      next launch after that asks for another token; the scheduler does not wait for it.
//   J  A client that is gone keeps its token until the quota is over.
//
// What differs, for want of Gemini's own hook in the client library:
//   - Synchronisations are not seen, only gaps are. A holder is taken to synchronise shortly before
//     its quota ends: its lease is closed as much earlier as its longest drain of the last three
//     seconds took, so that it asks again in time to be ranked with the others (H). Of two that are
//     always busy, one that synchronises too seldom asks too late in Gemini, and they alternate
//     whatever their requests are; here only kernels that are longer than half a quota do that.
//   - Bursts are known from the members' reports: device time charged between two reports of being
//   idle
//     (no work for a tenth of a millisecond or so). Shorter gaps Gemini would merge, too (G).
//   - A holder queues no more than a contended backlog, and launches nothing after its quota; in
//     Gemini a burst that has begun passes. Both make overuse smaller here.
// Quotas: tools/launch-backend.py starts the scheduler with 300, 20 and 10000 ms (its own defaults,
// 250, 100 and 10000, make turns longer).

#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "policy/compute/lease_policy.h"

namespace prorata::policy {

struct GeminiOptions {
  int64_t base_quota_ns = 300'000'000;
  int64_t least_quota_ns = 20'000'000;
  int64_t window_ns = 10'000'000'000;
  int64_t merge_ns = 2'000'000;     // hook.cpp, SCHD_OVERHEAD
  int64_t keep_ns = 3'000'000'000;  // predictor.h, PREDICT_MAX_KEEP
  bool always_least_quota =
      false;  // not Gemini's: D and G left out, the shortest turns it can make
};

class GeminiTokens final : public LeasePolicy {
 public:
  explicit GeminiTokens(const GeminiOptions& options = {}) : options_(options) {}

  void Add(Key share, const ComputeTerms& terms, const Work& work, int64_t now_ns) override;
  void Remove(Key share, int64_t now_ns) override;
  void SetTerms(Key share, const ComputeTerms& terms, int64_t now_ns) override;
  void Observe(Key share, const Work& work) override;
  void Wanted(Key share, int64_t now_ns) override;
  void Idle(Key share, int64_t now_ns) override;
  void Drained(Key share, int64_t since_ns, int64_t now_ns) override;
  Decisions Decide(int64_t now_ns) override;
  ShareState State(Key share) const override;

  // For tests: what it used of the window, and the quota it got last.
  double UsedNs(Key share, int64_t now_ns) const { return Used(now_ns)[share]; }
  double QuotaNs(Key share) const;

 private:
  // The greatest of the values of the last keep_ns (predictor.cpp, RecordOwner).
  class Recent {
   public:
    void Add(int64_t now_ns, double value);
    double Greatest(int64_t now_ns, int64_t keep_ns);

   private:
    std::deque<std::pair<int64_t, double>> values_;  // decreasing
  };
  struct Grant {
    Key client = 0;
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
  };
  struct Client {
    Key key = 0;
    double request = 0;
    double limit = 1;
    bool open = false;
    bool draining = false;
    bool runnable = false;
    bool issued_open = false;
    double quota_ns = 0;
    double burst_ns = 0;  // of its last request for a token
    int64_t token_end_ns = 0;
    int64_t overuse_ns = 0;
    int64_t closed_ns = 0;
    Recent drains;
    // What its hook would measure.
    uint64_t charged_total_ns = 0;
    uint64_t charged_at_burst_end_ns = 0;
    int64_t burst_ended_ns = 0;
    bool between_bursts = true;  // reported idle, and nothing was seen of it since
    bool gap_counts = false;     // the gap that began with its last burst's end, not with a token's
    double merged_ns = 0;        // the burst that goes on growing while gaps are short
    Recent bursts;
    Recent merged_bursts;
    Recent gaps;
  };

  Client* Find(Key key);
  const Client* Find(Key key) const;
  void EndBurst(Client& client, int64_t now_ns, bool cut_short);
  void Close(Client& client);
  void EndWhatIsOver();
  int64_t AsksAgainNs(Client& client);
  void Ask(Client& client);
  double FullBurst(Client& client);
  double NextQuota(const Client& client) const;
  std::map<Key, double> Used(int64_t now_ns) const;
  std::optional<Key> Select() const;
  void GiveToken();
  void Collect(Decisions& decisions);
  int64_t NextNs();

  GeminiOptions options_;
  std::vector<Client> clients_;
  std::vector<Key> asking_;      // in the order in which they wanted it; some must drain first
  std::vector<Key> candidates_;  // in the order in which they asked
  std::deque<Grant> grants_;
  std::optional<Key> holder_;  // of the token, be its lease open or not
  int64_t token_until_ns_ = 0;
  int64_t asleep_until_ns_ = 0;
  int64_t now_ns_ = 0;
  int64_t started_ns_ = -1;
};

}  // namespace prorata::policy
