#include "sim/policies/gemini_tokens.h"

#include <algorithm>

namespace prorata::policy {
namespace {

// Rule B.
bool GoesFirst(double missing_a, double used_a, double missing_b, double used_b) {
  if (missing_a > 0 && missing_b > 0) {
    return missing_a / (missing_a + used_a) > missing_b / (missing_b + used_b);
  }
  if (missing_a > 0 && missing_b < 0) return true;
  if (missing_a < 0 && missing_b > 0) return false;
  return used_a < used_b;
}

}  // namespace

// --- What its hook would measure ----------------------------------------------------------------

void GeminiTokens::Recent::Add(int64_t now_ns, double value) {
  while (!values_.empty() && values_.back().second < value) values_.pop_back();
  values_.emplace_back(now_ns, value);
}

double GeminiTokens::Recent::Greatest(int64_t now_ns, int64_t keep_ns) {
  while (!values_.empty() && now_ns - values_.front().first > keep_ns) values_.pop_front();
  return values_.empty() ? 0 : values_.front().second;
}

void GeminiTokens::Observe(Key key, const Work& work) {
  Client* client = Find(key);
  if (client == nullptr) return;
  const bool works = work.busy_total_ns > client->charged_total_ns || work.backlog_ns > 0;
  if (works) client->between_bursts = false;
  client->charged_total_ns = std::max(client->charged_total_ns, work.busy_total_ns);
}

void GeminiTokens::EndBurst(Client& client, int64_t now_ns, bool cut_short) {
  const auto burst_ns =
      static_cast<double>(client.charged_total_ns - client.charged_at_burst_end_ns);
  if (burst_ns > 0) {
    const double gap_ns = static_cast<double>(now_ns - client.burst_ended_ns) - burst_ns;
    if (client.gap_counts) client.gaps.Add(now_ns, std::max(gap_ns, 0.0));
    const bool merges = gap_ns <= static_cast<double>(options_.merge_ns);
    client.merged_ns = burst_ns + (merges ? client.merged_ns + std::max(gap_ns, 0.0) : 0);
    client.bursts.Add(now_ns, burst_ns);
    client.merged_bursts.Add(now_ns, client.merged_ns);
    client.charged_at_burst_end_ns = client.charged_total_ns;
    client.burst_ended_ns = now_ns;
    client.gap_counts = true;
  }
  if (cut_short) client.gap_counts = false;
}

double GeminiTokens::FullBurst(Client& client) {
  const double burst_ns = client.merged_bursts.Greatest(now_ns_, options_.keep_ns);
  const double gap_ns = client.gaps.Greatest(now_ns_, options_.keep_ns);
  return gap_ns < static_cast<double>(options_.merge_ns) ? 2 * burst_ns : burst_ns;
}

// --- Events -------------------------------------------------------------------------------------

void GeminiTokens::Add(Key key, const ComputeTerms& terms, const Work& work, int64_t now_ns) {
  if (started_ns_ < 0) started_ns_ = now_ns;
  Client& client = clients_.emplace_back();
  client.key = key;
  client.charged_total_ns = client.charged_at_burst_end_ns = work.busy_total_ns;
  client.burst_ended_ns = now_ns;
  SetTerms(key, terms, now_ns);
}

void GeminiTokens::Remove(Key key, int64_t) {
  std::erase_if(clients_, [key](const Client& client) { return client.key == key; });
  std::erase(asking_, key);
  std::erase(candidates_, key);
}

void GeminiTokens::SetTerms(Key key, const ComputeTerms& terms, int64_t) {
  Client* client = Find(key);
  if (client == nullptr) return;
  client->request = terms.request.value();
  client->limit = terms.limit.value();
  client->quota_ns = static_cast<double>(options_.base_quota_ns);
  client->burst_ns = 0;
}

void GeminiTokens::Wanted(Key key, int64_t) {
  Client* client = Find(key);
  if (client == nullptr || client->open || client->runnable) return;
  client->runnable = true;
  asking_.push_back(key);
}

void GeminiTokens::Idle(Key key, int64_t now_ns) {
  Client* client = Find(key);
  if (client == nullptr || !client->open) return;
  client->between_bursts = true;
  EndBurst(*client, now_ns, false);
}

void GeminiTokens::Drained(Key key, int64_t, int64_t now_ns) {
  Client* client = Find(key);
  if (client == nullptr || !client->draining) return;
  client->draining = false;
  client->drains.Add(now_ns, static_cast<double>(now_ns - client->closed_ns));
  client->overuse_ns = std::max<int64_t>(0, now_ns - client->token_end_ns);
  // Rule I: had a burst begun, the hook takes the draining for its end.
  EndBurst(*client, now_ns, !client->between_bursts);
}

// --- Decisions ----------------------------------------------------------------------------------

GeminiTokens::Decisions GeminiTokens::Decide(int64_t now_ns) {
  now_ns_ = std::max(now_ns_, now_ns);
  EndWhatIsOver();
  for (size_t i = 0; i < asking_.size();) {
    Client& client = *Find(asking_[i]);
    if (client.draining) {
      ++i;
      continue;
    }
    asking_.erase(asking_.begin() + static_cast<ptrdiff_t>(i));
    Ask(client);
  }
  if (!holder_ && !candidates_.empty() && now_ns_ >= asleep_until_ns_) GiveToken();
  Decisions decisions;
  Collect(decisions);
  decisions.next_ns = NextNs();
  return decisions;
}

void GeminiTokens::EndWhatIsOver() {
  if (!holder_) return;
  Client* client = Find(*holder_);
  if (now_ns_ >= token_until_ns_) {
    holder_.reset();
    if (client != nullptr) Close(*client);
    return;
  }
  // Rule H: the lease is closed so that its next launch asks; the token stays where it is.
  if (client != nullptr && client->open && now_ns_ >= AsksAgainNs(*client)) Close(*client);
}

// When a holder would ask again instead of launching: what it would launch does not fit any more.
int64_t GeminiTokens::AsksAgainNs(Client& client) {
  if (client.between_bursts) {
    const double burst_ns = client.bursts.Greatest(now_ns_, options_.keep_ns);
    return token_until_ns_ - static_cast<int64_t>(burst_ns);
  }
  const double drain_ns = std::max(client.drains.Greatest(now_ns_, options_.keep_ns),
                                   static_cast<double>(options_.merge_ns));
  return token_until_ns_ - static_cast<int64_t>(std::min(drain_ns, client.quota_ns / 2));
}

void GeminiTokens::Close(Client& client) {
  if (!client.open) return;
  client.open = false;
  client.draining = true;
  client.closed_ns = now_ns_;
}

// A request for a token reaches the scheduler.
void GeminiTokens::Ask(Client& client) {
  if (client.gap_counts) {
    client.gaps.Add(now_ns_, static_cast<double>(now_ns_ - client.burst_ended_ns));
    client.gap_counts = false;
  }
  const auto last = std::find_if(grants_.rbegin(), grants_.rend(),
                                 [&](const Grant& grant) { return grant.client == client.key; });
  if (last != grants_.rend()) last->end_ns = std::min(now_ns_, last->end_ns + client.overuse_ns);
  client.overuse_ns = 0;
  client.burst_ns = FullBurst(client);
  if (holder_ == client.key) holder_.reset();
  candidates_.push_back(client.key);
  asleep_until_ns_ = now_ns_;
}

double GeminiTokens::NextQuota(const Client& client) const {
  if (options_.always_least_quota) return static_cast<double>(options_.least_quota_ns);
  if (client.burst_ns < 1) return static_cast<double>(options_.base_quota_ns);
  const double quota_ns = (client.burst_ns + client.quota_ns) / 2;
  return std::min(std::max(quota_ns, static_cast<double>(options_.least_quota_ns)),
                  client.limit * static_cast<double>(options_.window_ns));
}

// Rule A. Swept from one begin or end of a grant to the next.
std::map<GeminiTokens::Key, double> GeminiTokens::Used(int64_t now_ns) const {
  const int64_t window_ns = now_ns - options_.window_ns;
  std::vector<std::pair<int64_t, const Grant*>> moments;  // a grant's begin, and its end
  for (const Grant& grant : grants_) {
    if (grant.end_ns <= window_ns) continue;
    moments.emplace_back(std::max(grant.begin_ns, window_ns), &grant);
    moments.emplace_back(grant.end_ns, &grant);
  }
  std::sort(moments.begin(), moments.end());
  std::map<Key, double> used;
  std::vector<const Grant*> at_once;
  int64_t since_ns = window_ns;
  for (const auto& [when_ns, grant] : moments) {
    const auto passed_ns = static_cast<double>(when_ns - since_ns);
    for (const Grant* running : at_once) {
      used[running->client] += passed_ns / static_cast<double>(at_once.size());
    }
    since_ns = when_ns;
    if (std::erase(at_once, grant) == 0) at_once.push_back(grant);
  }
  return used;
}

std::optional<GeminiTokens::Key> GeminiTokens::Select() const {
  const Key first = candidates_.front();
  if (std::none_of(grants_.begin(), grants_.end(),
                   [first](const Grant& grant) { return grant.client == first; })) {
    return first;  // rule C
  }
  const auto window_ns = static_cast<double>(std::min(options_.window_ns, now_ns_ - started_ns_));
  std::map<Key, double> used = Used(now_ns_);
  std::optional<Key> best;
  double best_missing_ns = 0;
  double best_used_ns = 0;
  for (const Key key : candidates_) {
    const Client& client = *Find(key);
    const double used_ns = used[key];
    if (client.limit * window_ns - used_ns <= 0) continue;
    const double missing_ns = client.request * window_ns - used_ns;
    if (best && !GoesFirst(missing_ns, used_ns, best_missing_ns, best_used_ns)) continue;
    best = key;
    best_missing_ns = missing_ns;
    best_used_ns = used_ns;
  }
  return best;
}

void GeminiTokens::GiveToken() {
  const int64_t window_ns = now_ns_ - options_.window_ns;
  std::erase_if(grants_, [window_ns](const Grant& grant) { return grant.end_ns < window_ns; });
  const std::optional<Key> selected = Select();
  if (!selected) {
    asleep_until_ns_ = grants_.front().end_ns + options_.window_ns;
    return;
  }
  std::erase(candidates_, *selected);
  Client& client = *Find(*selected);
  client.quota_ns = NextQuota(client);
  token_until_ns_ = now_ns_ + static_cast<int64_t>(client.quota_ns);
  client.token_end_ns = token_until_ns_;
  client.open = true;
  client.runnable = client.between_bursts = false;
  holder_ = client.key;
  grants_.push_back({client.key, now_ns_, token_until_ns_});
}

void GeminiTokens::Collect(Decisions& decisions) {
  for (const bool opens : {false, true}) {
    for (Client& client : clients_) {
      if (client.open != opens || client.open == client.issued_open) continue;
      client.issued_open = client.open;
      // Contended, so that its members report when they are idle.
      decisions.changes.push_back({client.key, client.open, client.open});
    }
  }
}

int64_t GeminiTokens::NextNs() {
  if (!holder_) return candidates_.empty() ? kNever : asleep_until_ns_;
  Client* client = Find(*holder_);
  if (client == nullptr || !client->open) return token_until_ns_;
  return std::max(now_ns_, AsksAgainNs(*client));
}

// --- What members report
// -------------------------------------------------------------------------------

GeminiTokens::ShareState GeminiTokens::State(Key key) const {
  ShareState state;
  if (const Client* client = Find(key)) {
    state.phase = client->open       ? Phase::kRunning
                  : client->draining ? Phase::kDraining
                  : client->runnable ? Phase::kRunnable
                                     : Phase::kIdle;
    state.waits = client->runnable;
    state.charged_ns = static_cast<double>(client->charged_total_ns);
    state.entitled = client->request;
  }
  return state;
}

double GeminiTokens::QuotaNs(Key key) const {
  const Client* client = Find(key);
  return client == nullptr ? 0 : client->quota_ns;
}

GeminiTokens::Client* GeminiTokens::Find(Key key) {
  return const_cast<Client*>(static_cast<const GeminiTokens*>(this)->Find(key));
}

const GeminiTokens::Client* GeminiTokens::Find(Key key) const {
  const auto found = std::find_if(clients_.begin(), clients_.end(),
                                  [key](const Client& client) { return client.key == key; });
  return found == clients_.end() ? nullptr : &*found;
}

}  // namespace prorata::policy
