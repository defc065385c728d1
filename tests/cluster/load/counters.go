package main

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// keptErrors is how many errors are told in words.
const keptErrors = 30

// counters are the stats, for many goroutines.
type counters struct {
	mu    sync.Mutex
	stats loadstats.Stats
}

func (c *counters) read() loadstats.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Clients, s.Hosts, s.Failures = maps.Clone(s.Clients), maps.Clone(s.Hosts), maps.Clone(s.Failures)
	s.Errors = slices.Clone(s.Errors)
	return s
}

func (c *counters) opened(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Open += n
}

func (c *counters) answered(a answer, long bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from(a)
	if long {
		c.stats.Requests++
	} else {
		c.stats.Short++
	}
}

func (c *counters) answeredDatagram(a answer, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from(a)
	c.stats.Datagrams++
	if again {
		c.stats.Resent++
	}
}

// from is called with the lock held.
func (c *counters) from(a answer) {
	if c.stats.Clients == nil {
		c.stats.Clients, c.stats.Hosts = make(map[string]int), make(map[string]int)
	}
	c.stats.Clients[a.Client]++
	c.stats.Hosts[a.Host]++
}

func (c *counters) took(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Slowest = max(c.stats.Slowest, int(d.Milliseconds()))
}

func (c *counters) broken(path loadstats.Path, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Broken++
	c.keep("broken", path, err)
}

func (c *counters) failed(kind, target string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Failed++
	c.keep(kind+" failed", loadstats.Path{Target: target}, err)
}

func (c *counters) lost(target string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Lost++
	c.keep("datagram lost", loadstats.Path{Target: target}, err)
}

// keep is called with the lock held.
func (c *counters) keep(what string, path loadstats.Path, err error) {
	text := fmt.Sprintf("%s %s %s: %v", time.Now().Format("15:04:05.000"), what, path.Target, err)
	if len(c.stats.Errors) < keptErrors {
		c.stats.Errors = append(c.stats.Errors, text)
	}
	if c.stats.Failures == nil {
		c.stats.Failures = make(map[loadstats.Path]loadstats.Failure)
	}
	c.stats.Failures[path] = loadstats.Failure{Times: c.stats.Failures[path].Times + 1, Latest: text}
}
