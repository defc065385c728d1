package main

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestStages: each stage waits for the one before; none follows one that fails.
func TestStages(t *testing.T) {
	failed := errors.New("failed")
	for fails, want := range map[string][]string{
		"":        {"prepare", "connect", "run"},
		"prepare": {"prepare"},
		"connect": {"prepare", "connect"},
		"run":     {"prepare", "connect", "run"},
	} {
		var began []string
		stage := func(name string) part {
			return func(context.Context) error {
				if began = append(began, name); name == fails {
					return failed
				}
				return nil
			}
		}
		err := inOrder(t.Context(), stage("prepare"), stage("connect"), stage("run"))
		if !slices.Equal(began, want) || errors.Is(err, failed) != (fails != "") {
			t.Errorf("%q fails: %v have begun, want %v; %v", fails, began, want, err)
		}
	}
}

// TestPartsEndTogether: the end of the context ends all parts, without an error; the error of one part
// ends the others, and is returned when they have ended.
func TestPartsEndTogether(t *testing.T) {
	failed := errors.New("failed")
	for _, want := range []error{nil, failed} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var ended atomic.Int32
			untilTheEnd := endless(func(ctx context.Context) {
				<-ctx.Done()
				ended.Add(1)
			})
			parts := []part{untilTheEnd, untilTheEnd}
			if want != nil {
				parts = append(parts, func(context.Context) error { return want })
			}
			result := make(chan error)
			go func() { result <- run(ctx, parts) }()
			synctest.Wait()
			if want == nil {
				if n := ended.Load(); n > 0 {
					t.Errorf("%d parts have ended before the context", n)
				}
				stop()
			}
			if err := <-result; err != want || ended.Load() != 2 {
				t.Errorf("got %v with %d of two parts ended, want %v", err, ended.Load(), want)
			}
		})
	}
}
