// Package loadstats is what a load tells about itself.
package loadstats

// Stats are the counts since the start.
type Stats struct {
	// Open is how many long connections are open now, Requests how many answers
	// came over them, Broken how many of them ended otherwise than by their age.
	Open, Requests, Broken int
	// Short is how many short connections were answered, Failed how many of both
	// kinds could not be made or, when short, were not answered.
	Short, Failed int
	// Slowest is the longest that a short connection took, in milliseconds.
	Slowest int
	// Clients and Hosts are the answers by the client's address and the server.
	Clients, Hosts map[string]int
	// Errors are the first of what went wrong, with the time.
	Errors []string
}
