package bpf

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Clock reads the clock that the programs stamp entries with.
func Clock() (time.Duration, error) { return read(unix.CLOCK_MONOTONIC_COARSE) }

// EventClock reads the clock that the programs stamp events with.
func EventClock() (time.Duration, error) { return read(unix.CLOCK_MONOTONIC) }

func read(clock int32) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return time.Duration(ts.Nano()) - timeOffset(), nil
}

// timeOffset returns how far the clock is ahead that this process sees of the programs': in a time namespace
// (time_namespaces(7)), as of a container that was restored, they differ.
var timeOffset = sync.OnceValue(func() time.Duration {
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0 // the kernel has no time namespaces
	}
	for line := range strings.Lines(string(text)) {
		var clock string
		var seconds, nanoseconds int64
		if _, err := fmt.Sscan(line, &clock, &seconds, &nanoseconds); err == nil && clock == "monotonic" {
			return time.Duration(seconds)*time.Second + time.Duration(nanoseconds)
		}
	}
	return 0
})
