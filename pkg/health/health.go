// Package health tells over HTTP whether the agent keeps the node's tables true.
package health

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// stuck is how long a change may wait before the agent counts as unhealthy.
const stuck = time.Minute

// State is what the agent knows of its own health. Make one with [New].
type State struct {
	oldest func() time.Time
	now    func() time.Time

	mu      sync.Mutex
	updated time.Time
}

// New returns the state of an agent that has not synced yet. oldest returns when
// the oldest change that still waits came in, zero when there is none.
func New(oldest func() time.Time) *State {
	return &State{oldest: oldest, now: time.Now}
}

// Synced notes that the tables are up to date.
func (s *State) Synced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updated = s.now()
}

// status is the body of an answer.
type status struct {
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	Healthy     bool      `json:"healthy"`
}

// ServeHTTP answers 200 when every change older than a minute is in the kernel,
// else 503.
func (s *State) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	now, oldest := s.now(), s.oldest()
	s.mu.Lock()
	body := status{LastUpdated: s.updated, CurrentTime: now}
	s.mu.Unlock()
	body.Healthy = !body.LastUpdated.IsZero() && (oldest.IsZero() || now.Sub(oldest) < stuck)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !body.Healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	// The client has gone when this fails.
	_ = json.NewEncoder(w).Encode(body)
}
