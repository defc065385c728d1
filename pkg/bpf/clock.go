package bpf

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Clock reads the clock that the programs stamp entries with.
func Clock() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts); err != nil {
		return 0, fmt.Errorf("read the coarse monotonic clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
