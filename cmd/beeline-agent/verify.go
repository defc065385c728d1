package main

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/verify"
)

// checkPeriod is how often the tables are compared with what was written: an entry that somebody
// changes right after it was looked at is found within a minute.
const checkPeriod = 30 * time.Second

// mostLogged is how many entries of one check are logged.
const mostLogged = 10

// checked logs and counts what a check of the tables has found.
func (a *agent) checked(c reconcile.Checked) {
	a.findings.Tables(len(c.Found))
	for i, d := range c.Found {
		if i == mostLogged {
			klog.InfoS("More entries of the tables were changed", "entries", len(c.Found)-i)
			break
		}
		klog.InfoS("An entry of the tables was changed by another program; writing it again",
			"entry", d.Text, "service", d.Service)
	}
	if c.Err != nil {
		klog.ErrorS(c.Err, "The tables could not be compared in full, trying again", "in", checkPeriod)
	}
	klog.V(4).InfoS("Tables compared", "findings", len(c.Found), "worked", c.Worked, "took", c.Took)
}

// mended logs and counts entries that were changed, and have been written again.
func (a *agent) mended(entries string) {
	a.findings.Entries(1)
	klog.InfoS("Entries of the tables were changed by another program; they were written again", "entries", entries)
}

// checkMachine looks again and again at what others set up on the machine and the agent does not mend.
func (a *agent) checkMachine(ctx context.Context) {
	machine := verify.MachineChecker{
		Maps: a.datapath.Maps(), Settings: a.config,
		ClockAhead: a.source.ClockAhead, NodeMissing: a.source.NodeMissing,
	}
	machine.Follow(ctx, a.findings.Machine)
}
