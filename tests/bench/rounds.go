package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/model"
)

// contestant is a measurement that is compared with others.
type contestant struct {
	name string
	once func() (float64, error)
}

// measured are the results of one round, by contestant.
type measured map[string]float64

// interleave measures every contestant once a round, in random order. Only results
// of one round are to be compared.
func interleave(ctx context.Context, rounds int, contestants []contestant, round func(measured)) error {
	for range rounds {
		if err := ctx.Err(); err != nil {
			return err
		}
		m := make(measured)
		for _, i := range rand.Perm(len(contestants)) {
			c := contestants[i]
			value, err := c.once()
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			m[c.name] = value
		}
		round(m)
	}
	return nil
}

// measureFamilies measures each family, as one run, on a quiet thread.
func measureFamilies(measure func(samples, model.Family) error) ([]samples, error) {
	if err := quiet(); err != nil {
		return nil, err
	}
	s := make(samples)
	for _, family := range model.Families {
		if err := measure(s, family); err != nil {
			return nil, fmt.Errorf("%s: %w", family, err)
		}
	}
	return []samples{s}, nil
}

// quiet gives this goroutine a thread of its own, on the last CPU, which is not
// held up by the garbage collector.
func quiet() error {
	runtime.GC()
	debug.SetGCPercent(-1)
	// Threads in a loop of system calls hold a P each.
	runtime.GOMAXPROCS(runtime.NumCPU() + 2)
	return pin(runtime.NumCPU() - 1)
}

// pin gives this goroutine a thread of its own, on that CPU.
func pin(cpu int) error {
	runtime.LockOSThread()
	var cpus unix.CPUSet
	cpus.Set(cpu)
	if err := unix.SchedSetaffinity(0, &cpus); err != nil {
		return fmt.Errorf("pin the thread to CPU %d: %w", cpu, err)
	}
	return nil
}

// threadTime returns the CPU time of this thread, ns.
func threadTime() int64 {
	var t unix.Timespec
	// It fails for a wrong clock only.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return t.Nano()
}
