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
	stays, leaves := &model.Node{}, &model.Node{Leaving: true}
	for _, tc := range []struct {
		name           string
		synced         bool
		oldest         time.Time
		node           *model.Node
		healthz, livez int
	}{
		{"before the first sync", false, time.Time{}, stays, bad, good},
		{"nothing waits", true, time.Time{}, stays, good, good},
		{"a change waits for less than the time-out", true, now.Add(-59 * time.Second), stays, good, good},
		{"a change waits for the time-out", true, now.Add(-time.Minute), stays, bad, bad},
		{"the first changes wait for the time-out", false, now.Add(-time.Minute), stays, bad, bad},
		{"the node leaves", true, time.Time{}, leaves, bad, good},
		{"there is no such node", true, time.Time{}, nil, bad, good},
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
			if tc.synced {
				s.Synced()
			}
			healthz, body := ask(t, s.Healthz)
			if healthz != tc.healthz || body.NodeEligible == nil || *body.NodeEligible != (tc.node == stays) {
				t.Errorf("healthz: got %d and %+v, want %d", healthz, body, tc.healthz)
			}
			livez, body := ask(t, s.Livez)
			if livez != tc.livez || body.NodeEligible != nil || body.Healthy != (livez == good) {
				t.Errorf("livez: got %d and %+v, want %d", livez, body, tc.livez)
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
	s.Synced()
	if code, body := ask(t, s.Healthz); code != http.StatusOK || !*body.NodeEligible {
		t.Errorf("got %d and %+v on a host without a cluster", code, body)
	}
}
