// Package health serves health checks over HTTP: of the agent itself (/healthz, /livez, /startupz),
// and of each Service with a healthCheckNodePort.
//
// Status codes, headers and bodies are kube-proxy's (v1.36), for load balancers and
// probes know these.
package health

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Options configure a [State].
type Options struct {
	// Oldest returns when the oldest change came in that is not in the kernel; zero
	// when there is none.
	Oldest func() time.Time
	// Timeout is how long a change may wait before the agent counts as unhealthy.
	Timeout time.Duration
	// WithoutNode says that there is no cluster and so no Node object.
	WithoutNode bool
	// Answered is called for each answer, by page: "healthz", "livez", "startupz".
	Answered func(page string, code int)
}

// State is the agent's health. Make one with [New].
type State struct {
	opts Options
	now  func() time.Time

	mu       sync.Mutex
	started  bool      // the first sync is over
	updated  time.Time // of the last sync after which nothing was stuck; zero before
	eligible bool
}

// New returns the state of an agent that has not synced yet.
func New(opts Options) *State {
	return &State{opts: opts, now: time.Now, eligible: opts.WithoutNode}
}

// Synced takes that a sync has ended; stuck says that something failed which is no Service's
// own fault.
func (s *State) Synced(stuck bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = true
	if !stuck {
		s.updated = s.now()
	}
}

// SetNode takes the Node object; nil is that there is none. Load balancers should
// send no new connection to a node that is not in the cluster or about to leave it
// (KEP-3836).
func (s *State) SetNode(n *model.LocalNode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eligible = n != nil && !n.Leaving
}

// Healthy reports whether changes reach the kernel in time. Before the first sync nothing
// is late: how long that takes is for the API server to say, and an agent that is started
// anew would have it list everything once more.
func (s *State) Healthy() bool {
	s.mu.Lock()
	started := s.started
	s.mu.Unlock()
	oldest := s.opts.Oldest()
	return !started || oldest.IsZero() || s.now().Sub(oldest) < s.opts.Timeout
}

// status is the body of an answer.
type status struct {
	// LastUpdated is the current time when the answer is good.
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyStatus `json:"status,omitempty"`
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// status returns what livez says, and whether the tables have ever been complete.
func (s *State) status() (body status, synced bool) {
	healthy := s.Healthy()
	s.mu.Lock()
	defer s.mu.Unlock()
	body = status{LastUpdated: s.updated, CurrentTime: s.now(), Healthy: healthy}
	if !s.updated.IsZero() {
		body.Status = make(map[string]familyStatus)
		for _, f := range model.Families {
			body.Status[f.String()] = familyStatus{LastUpdated: s.updated, Healthy: healthy}
		}
	}
	return body, !s.updated.IsZero()
}

// Healthz answers 200 when this node should get connections: changes reach the
// kernel in time and the node stays in the cluster.
//
// Before the first sync it answers 503: there may be nothing yet that serves.
func (s *State) Healthz(w http.ResponseWriter, _ *http.Request) {
	body, synced := s.status()
	s.mu.Lock()
	eligible := s.eligible
	s.mu.Unlock()
	body.NodeEligible = &eligible
	s.answer(w, "healthz", body, body.Healthy && eligible && synced)
}

// Startupz answers 200 once the first sync is over. The agent serves from then on, and
// whether changes are late says something about it.
func (s *State) Startupz(w http.ResponseWriter, _ *http.Request) {
	body, _ := s.status()
	s.mu.Lock()
	started := s.started
	s.mu.Unlock()
	s.answer(w, "startupz", body, started)
}

// Livez answers 200 unless the agent should be started anew: changes have not
// reached the kernel in time. Before the first sync it always does.
func (s *State) Livez(w http.ResponseWriter, _ *http.Request) {
	body, _ := s.status()
	s.answer(w, "livez", body, body.Healthy)
}

func (s *State) answer(w http.ResponseWriter, page string, body status, good bool) {
	code := http.StatusServiceUnavailable
	if good {
		code = http.StatusOK
		body.LastUpdated = body.CurrentTime
	}
	s.opts.Answered(page, code)
	// Marshalling a status cannot fail.
	text, _ := json.Marshal(body)
	writeJSON(w, code, text)
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	// The client has gone when this fails.
	_, _ = w.Write(body)
}
