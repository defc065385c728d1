package verify

import (
	"cmp"
	"slices"
	"time"
)

// holding tells differences that last from halves of an update: source, maps and agent are read
// one after the other.
type holding struct {
	settle time.Duration
	// changed returns when the source last changed what may explain a difference.
	changed func(Finding) time.Time
	// since is the begin of the look that saw each first, of all that the last look has seen.
	since map[Finding]time.Time
}

// see takes what a look has found that began at start. A difference that the source has changed since
// begins anew.
func (h *holding) see(found []Finding, start time.Time) {
	now := make(map[Finding]time.Time, len(found))
	for _, f := range found {
		since, was := h.since[f]
		if !was || h.changed(f).After(since) {
			since = start
		}
		now[f] = since
	}
	h.since = now
}

// judge returns the differences that are findings, and those of which that cannot be said yet: an agent,
// if one runs, may be about to write them, and one look may take longer than they have to last. start is
// when the last look began, waiting when the oldest change came in that the agent has not written; zero:
// none.
func (h *holding) judge(start time.Time, agent bool, waiting time.Time) (confirmed, open []Finding) {
	confirmed = []Finding{}
	for f, since := range h.since {
		settled := !h.changed(f).After(start)
		if agent {
			settled = settled && start.Sub(since) >= h.settle && (waiting.IsZero() || waiting.After(since))
		}
		if settled {
			confirmed = append(confirmed, f)
		} else {
			open = append(open, f)
		}
	}
	return confirmed, open
}

// unsettled names what could not be judged.
func unsettled(open []Finding) []string {
	names := []string{}
	for _, f := range open {
		names = append(names, cmp.Or(f.Service, string(f.Part)))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
