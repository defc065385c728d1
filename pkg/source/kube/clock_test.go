package kube

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/tests/wait"
)

// TestClockAhead: the difference from the API server's clock follows from any answer, one that refuses,
// too, but for the second that the server leaves open.
func TestClockAhead(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(-ahead).UTC().Format(http.TimeFormat))
			w.WriteHeader(http.StatusForbidden)
		}))
		t.Cleanup(server.Close)
		s, err := New(Options{Config: &rest.Config{Host: server.URL}, NodeName: "node", Sink: source.NewState()})
		if err != nil {
			t.Fatal(err)
		}
		if _, known := s.ClockAhead(); known {
			t.Error("a server that was not asked has told its time")
		}
		go func() { _ = s.Run(t.Context()) }() // ends without an error, with t
		wait.Until(t, "the server has answered", func() bool { _, known := s.ClockAhead(); return known })
		if got, _ := s.ClockAhead(); (got - ahead).Abs() > time.Minute {
			t.Errorf("a clock %v ahead: %v", ahead, got)
		}
	}
}

// TestServerTime: what the moment of the question and the second of the answer leave open counts as 0.
func TestServerTime(t *testing.T) {
	server := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tc := range []struct{ asked, answered, want time.Duration }{
		{0, 0, 0}, {-time.Second, time.Second, 0}, {900 * time.Millisecond, 950 * time.Millisecond, 0},
		{time.Minute, time.Minute + time.Second, 59 * time.Second},
		{-time.Minute, -50 * time.Second, -50 * time.Second},
	} {
		var c serverClock
		c.see(server.Add(tc.asked), server, server.Add(tc.answered))
		if c.ahead != tc.want || !c.known {
			t.Errorf("asked at %v, answered at %v: %v ahead, want %v", tc.asked, tc.answered, c.ahead, tc.want)
		}
	}
}
