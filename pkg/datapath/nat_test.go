package datapath_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/tests/tier"
)

// TestNamespacesWithoutRoomAreSoughtRarely: connect() in a network namespace for which there is no
// room makes the agent look for it once in a while, and however many such there are, for so many.
func TestNamespacesWithoutRoomAreSoughtRarely(t *testing.T) {
	tier.SameInEveryKernel(t)
	opts, _ := withUplink(t)
	opts.LeaveNAT = true
	d := prepare(t, opts)
	t.Cleanup(func() { must(t, d.Close()) })
	synctest.Test(t, func(t *testing.T) {
		search := func(want int, what string, cookies ...uint64) {
			t.Helper()
			got, err := d.SearchNAT(cookies...)
			must(t, err)
			if got != want {
				t.Errorf("%s: looked at all network namespaces %d times, want %d", what, got, want)
			}
		}
		d.FillNAT()
		search(1, "a namespace", 1)
		search(0, "the same one", 1)
		cookie := uint64(2)
		searched := 0
		for range 1000 {
			n, err := d.SearchNAT(cookie)
			must(t, err)
			searched += n
			cookie++
		}
		if searched != 255 {
			t.Errorf("of 1000 other namespaces %d were looked for, want 255", searched)
		}
		time.Sleep(10 * time.Second)
		search(1, "the first one, after a while", 1)
		search(1, "a new one", cookie)
	})
}
