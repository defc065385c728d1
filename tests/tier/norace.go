//go:build !race

package tier

// Race reports whether the test binary has the race detector.
const Race = false
