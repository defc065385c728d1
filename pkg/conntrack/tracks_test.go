package conntrack_test

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTracks(t *testing.T) {
	h := newHost(t)
	want := func(count string, some, fails bool) {
		t.Helper()
		if got, err := h.Tracks(); got != some || (err != nil) != fails {
			t.Errorf("a count of %q: tracks %v, error %v", count, got, err)
		}
	}
	want("none", false, false) // there is no connection tracking
	for count, expect := range map[string]struct{ some, fails bool }{
		"0\n": {false, false}, "1\n": {true, false}, "many\n": {true, true},
	} {
		if err := os.WriteFile(filepath.Join(h.Sysctls, "nf_conntrack_count"), []byte(count), 0o600); err != nil {
			t.Fatal(err)
		}
		want(count, expect.some, expect.fails)
	}
}
