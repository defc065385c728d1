// Package flock takes advisory locks (flock(2)) without blocking a thread in the kernel, so
// that a wait for one ends with its context.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// interval is how often a lock that another process holds is tried again.
const interval = 20 * time.Millisecond

// Exclusive locks an open file or folder, and waits until ctx ends for another process that
// has it. Closing the file unlocks it. The error wraps [unix.EWOULDBLOCK] and the cause of
// ctx's end when the lock was held until then; a lock that is free is had even when ctx has
// ended.
func Exclusive(ctx context.Context, file *os.File) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		timer.Reset(interval)
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock %s: held by another process (%w): %w", file.Name(), err, context.Cause(ctx))
		case <-timer.C:
		}
	}
}
