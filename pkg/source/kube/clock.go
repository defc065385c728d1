package kube

import (
	"net/http"
	"sync"
	"time"
)

// serverClock compares this machine's clock with an API server's, by the header Date of each answer: a
// request of its own, from each node again and again, would be many.
type serverClock struct {
	mu    sync.Mutex
	known bool
	ahead time.Duration
}

// ClockAhead returns how far this machine's clock is at least ahead of the API server's, or behind it,
// which is negative. The server tells its time to the second, and some time before the answer is here:
// what may be due to that is 0. It is as old as the last answer, up to ten minutes: a watch ends after 5 to
// 10. It is not known before the first.
func (s *Source) ClockAhead() (ahead time.Duration, known bool) {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	return s.clock.ahead, s.clock.known
}

// clockTransport has a clock see the answers to requests.
type clockTransport struct {
	http.RoundTripper
	clock *serverClock
}

// RoundTrip implements [http.RoundTripper].
func (t clockTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	asked := time.Now()
	resp, err := t.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	// Any answer has it, one that refuses, too.
	if server, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		t.clock.see(asked, server, time.Now())
	}
	return resp, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (t clockTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// see takes the server's time in an answer.
func (c *serverClock) see(asked, server, answered time.Time) {
	ahead := min(0, answered.Sub(server))
	if early := asked.Sub(server.Add(time.Second)); early > 0 {
		ahead = early
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead, c.known = ahead, true
}
