//go:build race

package bounds

// slower is how many times the race detector may slow work down.
const slower = 10
