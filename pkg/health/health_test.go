package health

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestStatus(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name   string
		synced bool
		oldest time.Time
		want   int
	}{
		{"before the first sync", false, time.Time{}, http.StatusServiceUnavailable},
		{"nothing waits", true, time.Time{}, http.StatusOK},
		{"a change has just come in", true, now.Add(-time.Second), http.StatusOK},
		{"a change waits for a minute", true, now.Add(-time.Minute), http.StatusServiceUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := New(func() time.Time { return tc.oldest })
			s.now = func() time.Time { return now }
			if tc.synced {
				s.Synced()
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			var body status
			if err := json.NewDecoder(w.Body).Decode(&body); err != nil {
				t.Fatal(err)
			}
			if w.Code != tc.want || body.Healthy != (tc.want == http.StatusOK) || !body.CurrentTime.Equal(now) {
				t.Errorf("got %d and %+v, want %d", w.Code, body, tc.want)
			}
		})
	}
}
