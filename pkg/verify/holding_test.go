package verify

import (
	"slices"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestHalfAnUpdate: a difference is a finding when it lasts, and neither the source nor the agent has
// a change that may explain it.
func TestHalfAnUpdate(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }
	web := model.Name{Namespace: "shop", Name: "web"}
	set := Finding{Part: Tables, Kind: "set-slots", Service: web.String(), What: "lacks 10.0.0.1:80", service: web}
	other := set
	other.What = "lacks 10.0.0.2:80"
	hook := Finding{Part: Programs, Kind: "link-detached"}
	type look struct {
		at      float64
		found   []Finding
		changed float64 // of the Service in the source; 0: long ago
		waiting float64 // of the agent; 0: nothing waits
		down    bool    // the agent
	}
	for _, tc := range []struct {
		name            string
		looks           []look
		confirmed, open []Finding
	}{
		{"seen once", []look{{at: 1, found: []Finding{set}}}, nil, []Finding{set}},
		{"lasts", []look{{at: 1, found: []Finding{set}}, {at: 5, found: []Finding{set}}}, []Finding{set}, nil},
		{"gone", []look{{at: 1, found: []Finding{set}}, {at: 5}}, nil, nil},
		{"gone and back", []look{{at: 1, found: []Finding{set}}, {at: 3}, {at: 5, found: []Finding{set}}}, nil, []Finding{set}},
		{"another one", []look{{at: 1, found: []Finding{set}}, {at: 5, found: []Finding{other}}}, nil, []Finding{other}},
		{"the source has changed", []look{{at: 1, found: []Finding{set}}, {at: 5, found: []Finding{set}, changed: 3}}, nil, []Finding{set}},
		{"the source had changed before", []look{{at: 1, found: []Finding{set}, changed: 0.5}, {at: 5, found: []Finding{set}, changed: 0.5}}, []Finding{set}, nil},
		{"the agent has an older change to write", []look{{at: 1, found: []Finding{set}}, {at: 5, found: []Finding{set}, waiting: 0.5}}, nil, []Finding{set}},
		{"the agent has a newer change to write", []look{{at: 1, found: []Finding{set}}, {at: 5, found: []Finding{set}, waiting: 4}}, []Finding{set}, nil},
		{"no agent", []look{{at: 1, found: []Finding{set}, down: true, waiting: 0.5}}, []Finding{set}, nil},
		{"no agent, the source changes", []look{{at: 1, found: []Finding{set}, down: true, changed: 1.01}}, nil, []Finding{set}},
		{"programs", []look{{at: 1, found: []Finding{hook}, changed: 3}, {at: 5, found: []Finding{hook}, changed: 3}}, []Finding{hook}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var changed time.Time
			h := holding{settle: 3 * time.Second, changed: func(f Finding) time.Time {
				if f.Part != Tables {
					return time.Time{}
				}
				return changed
			}}
			var confirmed, open []Finding
			for _, l := range tc.looks {
				changed = at(l.changed)
				h.see(l.found, at(l.at))
				var waiting time.Time
				if l.waiting != 0 {
					waiting = at(l.waiting)
				}
				confirmed, open = h.judge(at(l.at), !l.down, waiting)
			}
			if !slices.Equal(confirmed, tc.confirmed) || !slices.Equal(open, tc.open) {
				t.Errorf("confirmed %v, open %v; want %v, %v", confirmed, open, tc.confirmed, tc.open)
			}
		})
	}
}

// TestExplained: each kind of finding says why it matters and how to mend it, the latter by whether an
// agent runs.
func TestExplained(t *testing.T) {
	for _, r := range reasons {
		for _, agent := range []bool{false, true} {
			f := Finding{Kind: r.kind + "x"}
			f.explain(agent)
			if f.Why != r.why || f.Fix == "" || r.why == "" {
				t.Errorf("%s: why %q, fix %q", r.kind, f.Why, f.Fix)
			}
		}
	}
	for _, kind := range MachineKinds {
		f := Finding{Kind: kind}
		if f.explain(true); f.Why == "" {
			t.Errorf("%s is not explained", kind)
		}
	}
}
