// Package loadstats is what a load tells about itself.
package loadstats

import (
	"strings"
	"time"
)

// Timeout is how long a connection, and a request, may take.
const Timeout = 5 * time.Second

// Stats are the counts since the start.
type Stats struct {
	// Open is how many long connections are open now, Requests how many answers
	// came over them, Broken how many of them ended otherwise than by their age.
	Open, Requests, Broken int
	// Short is how many short connections were answered, Failed how many of both
	// kinds could not be made or, when short, were not answered.
	Short, Failed int
	// Datagrams is how many requests by UDP were answered, Resent how many of them not at
	// the first try, Lost how many never.
	Datagrams, Resent, Lost int
	// Slowest is the longest that a short connection took, in milliseconds.
	Slowest int
	// Clients and Hosts are the answers by the client's address and the server.
	Clients, Hosts map[string]int
	// Failures are what is counted in Broken, Failed and Lost, by where it happened.
	Failures map[Path]Failure
	// Errors are the first of what went wrong, with the time.
	Errors []string
}

// Failure is how often something went wrong, and the latest of it with the time.
type Failure struct {
	Times  int
	Latest string
}

// Path is the URL that was asked and the name of the server that a long connection had
// led to; the name is empty for all else.
type Path struct{ Target, Server string }

// MarshalText returns the path as a key in JSON.
func (p Path) MarshalText() ([]byte, error) { return []byte(p.Target + " " + p.Server), nil }

// UnmarshalText reads what MarshalText returns.
func (p *Path) UnmarshalText(text []byte) error {
	p.Target, p.Server, _ = strings.Cut(string(text), " ")
	return nil
}
