package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// serverClock compares this machine's clock with an API server's.
type serverClock struct {
	client *http.Client
	url    *url.URL
}

// ClockAhead returns how far this machine's clock is at least ahead of the API server's, or behind it,
// which is negative. The server tells its time to the second, and some time before the answer is here:
// what may be due to that is 0.
func (s *Source) ClockAhead(ctx context.Context) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.clock.url.String(), nil)
	if err != nil {
		return 0, err
	}
	asked := time.Now()
	resp, err := s.clock.client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask the api server for its time: %w", err)
	}
	answered := time.Now()
	resp.Body.Close()
	// Any answer has it, one that refuses, too.
	server, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return 0, fmt.Errorf("the api server's time: %w", err)
	}
	if ahead := asked.Sub(server.Add(time.Second)); ahead > 0 {
		return ahead, nil
	}
	return min(0, answered.Sub(server)), nil
}
