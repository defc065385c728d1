package kube

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/beeline-lb/beeline/pkg/source"
)

// TestClockAhead: the difference from the API server's clock is known but for the second that the
// server leaves open, also when it refuses the request.
func TestClockAhead(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(-ahead).UTC().Format(http.TimeFormat))
			w.WriteHeader(http.StatusForbidden)
		}))
		defer server.Close()
		s, err := New(Options{Config: &rest.Config{Host: server.URL}, NodeName: "node", Sink: source.NewState()})
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.ClockAhead(t.Context())
		if off := (got - ahead).Abs(); err != nil || off > time.Minute {
			t.Errorf("a clock %v ahead: %v, %v", ahead, got, err)
		}
	}
	s, err := New(Options{Config: &rest.Config{Host: "http://127.0.0.1:1"}, NodeName: "node", Sink: source.NewState()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ClockAhead(t.Context()); err == nil {
		t.Error("a server that is not there has told its time")
	}
}
