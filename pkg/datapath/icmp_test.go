package datapath

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestICMPRate: the setting is read as the kernel writes it, garbage is named with its file, and a rate
// above zero allows an error in each slice of time.
func TestICMPRate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "icmp_msgs_per_sec")
	for text, want := range map[string]uint32{"1000\n": 1000, "0\n": 0, "4294967295\n": 1<<32 - 1} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readICMPRate(path); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	if err := os.WriteFile(path, []byte("many\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readICMPRate(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("garbage: %v, want an error with the file's name", err)
	}
	for rate, want := range map[uint32]uint32{0: 0, 1: 1, 7: 1, 8: 2, 1000: 135, 1<<32 - 1: 576_460_753} {
		if got := icmpLimit(rate); got != want {
			t.Errorf("%d a second: %d in a slice, want %d", rate, got, want)
		}
	}
}
