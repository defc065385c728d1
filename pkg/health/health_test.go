package health

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
)

// ask returns the answer of a page.
func ask(t *testing.T, page http.HandlerFunc) (int, status) {
	t.Helper()
	w := httptest.NewRecorder()
	page(w, httptest.NewRequest(http.MethodGet, "/", nil))
	var body status
	if err := json.NewDecoder(w.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	return w.Code, body
}

func TestPages(t *testing.T) {
	const good, bad = http.StatusOK, http.StatusServiceUnavailable
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	stays, leaves := &model.LocalNode{}, &model.LocalNode{Leaving: true}
	for _, tc := range []struct {
		name           string
		stuck          []bool // after each sync
		oldest         time.Time
		node           *model.LocalNode
		healthz, livez int
	}{
		{"before the first sync", nil, time.Time{}, stays, bad, good},
		{"before the first sync, for a day", nil, now.Add(-24 * time.Hour), stays, bad, good},
		{"nothing waits", []bool{false}, time.Time{}, stays, good, good},
		{"a change waits for less than the time-out", []bool{false}, now.Add(-59 * time.Second), stays, good, good},
		{"a change waits for the time-out", []bool{false}, now.Add(-time.Minute), stays, bad, bad},
		{"the first sync left something to be tried again", []bool{true}, now.Add(-time.Second), stays, bad, good},
		{"and for the time-out", []bool{true}, now.Add(-time.Minute), stays, bad, bad},
		{"the node leaves", []bool{false}, time.Time{}, leaves, bad, good},
		{"there is no such node", []bool{false}, time.Time{}, nil, bad, good},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answers := make(map[string]int)
			s := New(Options{
				Oldest:   func() time.Time { return tc.oldest },
				Timeout:  time.Minute,
				Answered: func(page string, code int) { answers[page] = code },
			})
			s.now = func() time.Time { return now }
			s.SetNode(tc.node)
			for _, stuck := range tc.stuck {
				s.Synced(stuck)
			}
			healthz, body := ask(t, s.Healthz)
			if healthz != tc.healthz || body.NodeEligible == nil || *body.NodeEligible != (tc.node == stays) {
				t.Errorf("healthz: got %d and %+v, want %d", healthz, body, tc.healthz)
			}
			livez, body := ask(t, s.Livez)
			if livez != tc.livez || body.NodeEligible != nil || body.Healthy != (livez == good) {
				t.Errorf("livez: got %d and %+v, want %d", livez, body, tc.livez)
			}
			startupz := bad
			if len(tc.stuck) > 0 {
				startupz = good
			}
			if got, _ := ask(t, s.Startupz); got != startupz || answers["startupz"] != startupz {
				t.Errorf("startupz: got %d, counted %d, want %d", got, answers["startupz"], startupz)
			}
			if answers["healthz"] != tc.healthz || answers["livez"] != tc.livez {
				t.Errorf("answers were counted as %v", answers)
			}
		})
	}
}

func TestWithoutNode(t *testing.T) {
	s := New(Options{
		Oldest:      func() time.Time { return time.Time{} },
		Timeout:     time.Minute,
		WithoutNode: true,
		Answered:    func(string, int) {},
	})
	s.Synced(false)
	if code, body := ask(t, s.Healthz); code != http.StatusOK || !*body.NodeEligible {
		t.Errorf("got %d and %+v on a host without a cluster", code, body)
	}
}
