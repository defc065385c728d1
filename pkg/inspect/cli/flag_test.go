package cli

import (
	"testing"

	"github.com/beeline-lb/beeline/pkg/config"
)

// TestSizeFlags: the flags are those of the agent, whose configuration the command does not
// link.
func TestSizeFlags(t *testing.T) {
	agent := make(map[string]string)
	for _, f := range config.Fields() {
		agent[f.Path] = "--" + f.Flag
	}
	for field, flag := range sizeFlags {
		if want := agent[config.BeelineKind+"."+field]; flag != want {
			t.Errorf("%s is %s, the agent's flag is %s", field, flag, want)
		}
	}
}
