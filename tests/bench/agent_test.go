package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFindSynced(t *testing.T) {
	const line = `I0802 05:43:04.123456    7 agent.go:68] "Synced" services=100 took="1ms" pending=0` + "\n"
	cases := []struct {
		name, log string
		services  int
		found     bool
		fails     bool
	}{
		{"not yet", `I0802 05:43:04.000001    7 agent.go:60] "Serving" version="devel"` + "\n", 100, false, false},
		{"synced", line, 100, true, false},
		{"too few", line, 101, false, true},
		{"not wholly", `I0802 05:43:04.123456    7 agent.go:68] "Synced" services=100 took="1ms" pending=1` + "\n", 100, false, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a := &agent{log: filepath.Join(t.TempDir(), "log"), started: time.Date(2026, 8, 2, 5, 43, 0, 0, time.Local)}
			if err := os.WriteFile(a.log, []byte(c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			at, found, err := a.findSynced(c.services)
			if found != c.found || (err != nil) != c.fails {
				t.Fatalf("got found %v, error %v", found, err)
			}
			if want := 4123456 * time.Microsecond; found && at.Sub(a.started) != want {
				t.Errorf("got %s after the start, want %s", at.Sub(a.started), want)
			}
		})
	}
}
