package config

import (
	"fmt"
	"testing"

	"github.com/beeline-lb/beeline/pkg/setting"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// TestErrorText: an error names the flag of the field that it is about, a field without a flag
// by itself.
func TestErrorText(t *testing.T) {
	full := tables.Limit{Table: "bl_slot", Size: 9, Setting: "tables.maxSlots"}.Full()
	equal(t, "full", ErrorText(fmt.Errorf("copy: %w", full)), "copy: map bl_slot is full (9 entries): raise --max-slots")
	equal(t, "named", ErrorText(setting.Errorf("nodeIPs", "%s is none", "x")), "--node-ip: x is none")
	equal(t, "without a flag", ErrorText(setting.Errorf("flowTimeouts.udp", "too long")), "flowTimeouts.udp: too long")
}
