package version

import (
	"runtime/debug"
	"testing"
)

func TestName(t *testing.T) {
	module := func(version string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}}
	}
	for _, c := range []struct {
		description string
		linked      string
		info        *debug.BuildInfo
		want        string
	}{
		{"linked version wins", "v0.1.0-3-gabc", module("v0.2.0"), "v0.1.0-3-gabc"},
		{"installed by go install", devel, module("v0.2.0"), "v0.2.0"},
		{"built outside of version control", devel, module("(devel)"), devel},
		{"run by go run", devel, module(""), devel},
		{"no build information", devel, nil, devel},
	} {
		t.Run(c.description, func(t *testing.T) {
			if got := name(c.linked, c.info); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
